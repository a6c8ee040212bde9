# Read by CMake after llama.cpp's project(): its `common` library is half of the compile time, and its Python package,
# which asks for it, does not load it.
set(LLAMA_BUILD_COMMON OFF)
