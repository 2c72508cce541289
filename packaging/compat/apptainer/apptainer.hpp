#pragma once

#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"

namespace spc::apptainer {

using Words = std::vector<std::string>;

// --- flags ---

/// A flag of Apptainer: `-B VALUE`, `--bind VALUE`, `--bind=VALUE`; without a value also joined to
/// other letters, as in `-ce`, and `--nv=false`.
struct Flag {
  enum class Use {
    given,    ///< translated
    nothing,  ///< accepted: containers are so anyway, or it has no counterpart that matters
    warning,  ///< accepted with `note` as a warning
    refused,  ///< `note` is the error
  };
  char letter;  ///< 0: none
  const char* name;
  bool takes_value;
  Use use = Use::given;
  const char* note = nullptr;
};

/// A parsed command line: flags first, then words.
struct Parsed {
  std::map<std::string, Words, std::less<>> values;  ///< by the flag's name
  Words words;

  [[nodiscard]] bool has(std::string_view name) const { return values.contains(name); }
  /// Returns the last value, empty if the flag was not given.
  [[nodiscard]] std::string value(std::string_view name) const;
  [[nodiscard]] Words all(std::string_view name) const;
};

/// Parses `words`. Flags end at the first other word, at `--`, or with `mixed` nowhere. Prints the
/// warnings of flags; the error names an unknown or refused one.
Result<Parsed> parse(std::span<const std::string> words, std::span<const Flag> flags,
                     bool mixed = false);

/// Returns the first value that is set and not empty of APPTAINER_NAME and SINGULARITY_NAME.
std::optional<std::string> variable(const std::string& name);

/// Prints `WARNING: LINE`, as Apptainer does.
void warn(const std::string& line);

// --- images ---

/// Returns the image as scontainer names it: an absolute path, or one of its forms of names. An
/// error names what Apptainer has and this program has not, or the missing file.
Result<std::string> image_of(const std::string& text);

/// Returns `name_tag.sif` for docker://…/name:tag, as `apptainer pull` names its file.
std::string file_name_of(const std::string& uri);

/// Returns the path without a / at its end, from the work directory as the shell calls it.
std::string absolute(std::string path);

/// Returns whether the file is a SIF, a squashfs or a directory: an image, no definition file.
bool is_image_file(const std::string& path);

// --- start ---

/// The commands that start a container.
enum class Action { exec, run, shell, test, instance };

/// Flags of these commands.
std::span<const Flag> start_flags();

/// Returns the arguments of the `scontainer run`, or `scontainer exec` for instance://NAME, that
/// does what Apptainer does with this command line. The words begin with the image.
Result<Words> start_arguments(Action action, const Parsed& parsed);

}  // namespace spc::apptainer
