// The one macro that lets the arithmetic of src/format run on a CPU and on a GPU.
#pragma once

#if defined(__CUDACC__)
#define SUB8_HD __host__ __device__
#else
#define SUB8_HD
#endif
