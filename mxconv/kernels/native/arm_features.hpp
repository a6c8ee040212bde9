// What an aarch64 processor can do beyond the base of ARMv8, as the operating system says.
#pragma once

namespace mxconv {

struct ArmFeatures {
    bool dot_products;   // FEAT_DotProd
    bool int8_matrices;  // FEAT_I8MM
    bool bf16;           // FEAT_BF16
};

// All false where the operating system is none of Linux and macOS.
ArmFeatures arm_features();

}  // namespace mxconv
