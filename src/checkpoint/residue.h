// What calibration stores beside a model, in its subfolder sub8/: statistics of activations, static
// alphas, scales of the KV cache, the channel masks of K-Ext, and the weight columns that K-Ext
// appends. Byte by byte: docs/formats/residue.md. Other engines ignore the folder; weights and
// config.json know nothing of it.
//
//   sub8/residue.safetensors   tensors
//   sub8/residue.json          what they are, where they come from; `id` is in both files
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "checkpoint/weight_source.h"
#include "format/activation.h"
#include "tensor/stored_matrix.h"

namespace sub8::checkpoint {

// Shares of the channels that K-Ext can compensate; every file has the masks of all of them.
inline constexpr std::array<float, 3> kSelectRatios = {0.125f, 0.25f, 0.5f};
// The place of a ratio in kSelectRatios; nothing for others.
std::optional<size_t> select_ratio_index(float ratio);

struct ResidueModule {
  std::vector<float> mean_abs;  // [K] mean |x| of the module's input, finite, >= 0
  float amax = 0;               // the input's largest |x|, finite, no less than any mean
  // By place in kSelectRatios.
  std::array<std::vector<uint8_t>, 3> masks;  // [ceil(K/8)], bit i of byte g: channel 8g + i
  // [N, per_group * ceil(K/8)] in the format of the module's weight, with that weight's outer
  // scales; nothing where not stored.
  std::array<std::optional<StoredMatrix>, 3> extensions;
  // What a plan chose for the module's prompt rows: 0, one of the extensions' ratios, or 1.
  std::optional<float> prefill_ratio;
};

// Multipliers of a layer's K and V for fp8 and nvfp4 caches: amax / 448, positive; 1 for zeros.
struct KvScalePair {
  float k = 1.0f;
  float v = 1.0f;
  bool operator==(const KvScalePair&) const = default;
};

struct Residue {
  // Where extension columns were quantised from: the floating-point weights of the checkpoint
  // `original` (a name, not a path), or, where that is empty, the decoded weights themselves.
  std::string original;
  std::string text;  // name of the calibration text
  int64_t samples = 0;
  int64_t length = 0;  // most tokens of a sample
  int64_t tokens = 0;
  uint64_t seed = 0;
  std::map<std::string, ResidueModule, std::less<>> modules;
  // What alphas of NVFP4 and FP8 activations are taken from (static: each module's amax); nothing:
  // not said, the model's own choice. Never kTensor.
  std::optional<format::AlphaSource> alpha;
  std::vector<KvScalePair> kv_scales;  // one per layer, or none

  const ResidueModule* find(std::string_view module) const;
};

// Fills `masks` of all ratios from mean_abs (format/activation.h: select_mask).
void select_channels(ResidueModule& module);

bool has_residue(const std::filesystem::path& model_directory);

// Reads and checks both files against each other and against the model, whose files `source` reads
// (WeightSource::stored(), not weights that are quantised at load). Errors name file, module and
// tensor: another model or other weights than they were made for (fingerprint.h), unknown modules,
// other shapes or formats, masks that disagree with their ratio or with the means, statistics or
// scales that are NaN, infinite, negative or (scales) zero, tensors too many or too few, files of
// two different runs. Extension columns stay mapped.
Result<std::shared_ptr<const Residue>> read_residue(const std::filesystem::path& model_directory,
                                                    const WeightSource& source);

// The extension columns of one module at kSelectRatios[ratio].
using ExtensionFn =
    std::function<Result<StoredMatrix>(const std::string& module, size_t ratio_index)>;

// Which extensions the file gets: module -> places in kSelectRatios.
using ExtensionPlan = std::map<std::string, std::vector<size_t>, std::less<>>;

// Writes both files; `residue` has masks and no extensions, which `extend` makes one after the
// other. The folder sub8/ is made anew beside the old one, with what else is in it, and the two
// change places when all is on the disk: there is the old pair or the new one, whatever interrupts.
// Links inside the folder are not followed; a link in the place of the folder is refused.
Status write_residue(const std::filesystem::path& model_directory, const Residue& residue,
                     const WeightSource& source, const ExtensionPlan& plan,
                     const ExtensionFn& extend);

}  // namespace sub8::checkpoint
