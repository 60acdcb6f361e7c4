// Values on the command line mean what they look like, or are refused.
#pragma once

#include <CLI/CLI.hpp>

namespace sub8::apps {

// Checks for every option of `app` and its sub-commands. Numbers: decimal, no leading zeros (the
// library reads 010 as octal), within 64 bits (it clamps), no sign where none is meant, finite.
// Texts: not empty, but for texts to a model. Call when all options are there.
void require_strict_values(CLI::App& app);

}  // namespace sub8::apps
