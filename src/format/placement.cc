#include "format/placement.h"

#include "format/byte_placement.h"

namespace sub8::format {
namespace {

template <ElementFormat F>
bool match(ElementFormat f, Half target, Placement* out) {
  if (!(f == F)) return false;
  *out = target == Half::kF16 ? placement<F, Half::kF16>() : placement<F, Half::kBF16>();
  return true;
}

}  // namespace

Placement find_placement(ElementFormat f, Half target) {
  Placement out;
  (void)(match<kE2M0>(f, target, &out) || match<kE1M1>(f, target, &out) ||
         match<kE2M1>(f, target, &out) || match<kE2M2>(f, target, &out) ||
         match<kE3M1>(f, target, &out) || match<kE3M2>(f, target, &out) ||
         match<kE2M3>(f, target, &out) || match<kE3M3>(f, target, &out) ||
         match<kE4M3>(f, target, &out));
  return out;
}

BytePlacement find_byte_placement(ElementFormat f) {
  if (f == kE2M1) return byte_placement<kE2M1>();
  if (f == kE2M2) return byte_placement<kE2M2>();
  if (f == kE3M1) return byte_placement<kE3M1>();
  if (f == kE3M2) return byte_placement<kE3M2>();
  if (f == kE2M3) return byte_placement<kE2M3>();
  return {};
}

}  // namespace sub8::format
