STEP_COLUMNS = 64
class FragmentArrays: pass
