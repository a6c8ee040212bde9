#include "arm_features.hpp"

#if defined(__linux__)
#include <sys/auxv.h>
#elif defined(__APPLE__)
#include <sys/sysctl.h>
#endif

namespace mxconv {

#if defined(__linux__)
ArmFeatures arm_features() {
    // Documentation/arm64/elf_hwcaps.rst of Linux; older headers lack the names
    const unsigned long first = getauxval(AT_HWCAP), second = getauxval(AT_HWCAP2);
    return {(first >> 20 & 1) != 0, (second >> 13 & 1) != 0, (second >> 14 & 1) != 0};
}
#elif defined(__APPLE__)
namespace {

bool has(const char* name) {
    int value = 0;
    size_t num_bytes = sizeof value;
    return sysctlbyname(name, &value, &num_bytes, nullptr, 0) == 0 && value != 0;
}

}  // namespace

ArmFeatures arm_features() {
    return {has("hw.optional.arm.FEAT_DotProd"), has("hw.optional.arm.FEAT_I8MM"), has("hw.optional.arm.FEAT_BF16")};
}
#else
ArmFeatures arm_features() { return {false, false, false}; }
#endif

}  // namespace mxconv
