// Tokens in a page of the KV cache: what bookkeeping and kernels agree on.
#pragma once

namespace sub8::kvcache {

inline constexpr int kPageTokens = 32;

}  // namespace sub8::kvcache
