# How llama.cpp is built for the tests; CMake reads this after every project(), see the Makefile.
set(LLAMA_BUILD_COMMON OFF) # half of the compile time, and the Python package does not load it
set(LLAVA_BUILD OFF)
set(GGML_OPENMP OFF)        # torch brings a runtime of its own into the same process
set(GGML_LLAMAFILE OFF)
set(GGML_CPU_REPACK OFF)
set(CMAKE_CXX_FLAGS_RELEASE "-O1 -DNDEBUG") # compiles faster; the models of the tests are tiny
