#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/digest.hpp"
#include "base/result.hpp"
#include "config/config.hpp"
#include "recipe/recipe.hpp"
#include "reference/reference.hpp"
#include "tool/build/build_step.hpp"
#include "tool/surroundings/places.hpp"

namespace spc::tool {

/// An order of `scontainer build`.
struct BuildOrder {
  std::string context;  ///< a directory; empty: none, the recipe copies no files
  std::string file;     ///< path of the recipe, for messages
  std::string text;     ///< its content
  /// A definition file: its paths begin at the work directory, `context` is the root directory.
  bool is_definition = false;
  std::string target;                          ///< a stage; empty: the last one
  Variables arguments;                         ///< --build-arg
  std::map<std::string, std::string> secrets;  ///< id to path
  std::vector<std::string> cache_from;         ///< images whose steps are used
  std::string platform;                        ///< --platform; empty: this machine's
  std::optional<PullPolicy> pull;
  bool no_cache = false;
  bool debug_shell = false;  ///< start a shell where a RUN fails
  bool quiet = false;
};

/// Builds the image, stores it in the user's own store and returns its digest. `name`: its name in
/// the store, a canonical reference; empty: none. Prints each step to standard error unless the
/// order is quiet. Stages that do not need each other are built at the same time.
Result<Digest> build_image(const Places& places, const Config& config, const BuildOrder& order,
                           const std::string& name);

}  // namespace spc::tool
