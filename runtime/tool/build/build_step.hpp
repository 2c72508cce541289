#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/digest.hpp"
#include "base/json.hpp"
#include "base/result.hpp"
#include "config/config.hpp"
#include "recipe/recipe.hpp"
#include "reference/reference.hpp"
#include "request/mount_spec.hpp"
#include "tool/images/image_mount.hpp"
#include "tool/images/obtain.hpp"
#include "tool/images/stored_images.hpp"
#include "tool/surroundings/places.hpp"

namespace spc::tool {

// --- tree of a build ---

/// The file system that a step of a build begins with: an image of the user's own store, or an
/// empty one, and the changes of earlier steps.
struct BuildTree {
  std::optional<ListedImage> image;
  std::vector<std::string> changes;  ///< directories of BuildCache, bottom one first
  std::size_t layers = 0;            ///< number of the image's lowest layers; 0: all

  /// Opens its files, for mount_image().
  [[nodiscard]] Result<ImageFiles> open(const Places& places) const;
};

/// The layer that a step has made.
struct BuiltLayer {
  Digest digest;  ///< of the blob, which is compressed
  Digest diff_id;
  std::uint64_t size = 0;
};

/// Results of steps in the user's store, by the key of the step. Each has the directory `tree/up`
/// with the changes, which is mounted below later steps, and `layer` with its BuiltLayer. The blobs
/// of all layers are in one directory.
class BuildCache {
 public:
  /// Creates the directories, and removes what killed builds have left.
  static Result<BuildCache> open(const Places& places);
  /// Removes unfinished steps of builds that have ended.
  static void remove_unfinished(const Places& places);

  /// Returns the layer of a finished step, which counts as a use; empty if there is none.
  [[nodiscard]] std::optional<BuiltLayer> find(const Digest& key) const;
  /// Returns the step's directory.
  [[nodiscard]] std::string directory_of(const Digest& key) const;
  /// Returns the path of a layer's blob.
  [[nodiscard]] std::string blob(const Digest& digest) const;

  /// Removes steps that no build has used for a month, with their blobs. `dry`: only counts them.
  /// Returns their number.
  std::size_t remove_unused(bool dry) const;

  /// Removes a step's result.
  void forget(const Digest& key) const;

  /// Fetches the file of an https URL and returns a directory with it alone, named as in the URL.
  /// `checksum`: sha256:HEX, which the file must have, and with which it is fetched once; may be
  /// empty.
  Result<std::string> fetch(const std::string& url, const std::string& checksum,
                            const Config& config) const;

  /// Writes an OCI image layout with this manifest, its configuration and the layers of this build.
  /// Returns its path.
  Result<std::string> write_layout(const std::string& manifest, const std::string& config,
                                   const std::vector<BuiltLayer>& layers) const;

  /// Runs `work` with the mounted tree, as root of a user namespace in a child process, and keeps
  /// the changes as the step's result. `key`: the step's. An error keeps nothing.
  Result<BuiltLayer> make(const Digest& key, const BuildTree& tree, const Config& config,
                          const std::function<Result<void>(const MountedImage&)>& work) const;

 private:
  explicit BuildCache(const Places& places) : places_(places), root_(places.store + "/build") {}
  Places places_;
  std::string root_;
};

// --- image ---

/// The configuration of an image, and what instructions need of it.
struct ImageSetup {
  Json config = Json::object();  ///< the image configuration
  Variables environment;         ///< ENV
  Variables arguments;           ///< ARG
  std::vector<std::string> shell = {"/bin/sh", "-c"};
  std::string workdir = "/";

  /// Parses the configuration of an image.
  static Result<ImageSetup> parse(const std::string& config);
  /// Makes a configuration of settings: records `key=value\0`.
  static ImageSetup of_settings(const std::string& settings);
  /// Applies an instruction that changes only the configuration: ENV, LABEL, CMD, ENTRYPOINT,
  /// SHELL, USER, WORKDIR, STOPSIGNAL, EXPOSE, VOLUME, ONBUILD, HEALTHCHECK, MAINTAINER.
  Result<void> apply(const Instruction& one, char escape);
  /// Returns ARG and ENV.
  [[nodiscard]] Variables variables() const;
  Json& run_settings();

 private:
  Result<void> assign(const Instruction& one, char escape);
  Result<void> add_members(const Instruction& one, char escape);
};

/// Returns the changes of --change, `ENV A=1` or `ENV=A=1`, as lines of a recipe.
Result<std::string> lines_of_changes(const std::vector<std::string>& changes);

/// Applies --change to a mounted image that is to be written.
Result<void> change_settings(ArchiveSource& source, int root,
                             const std::vector<std::string>& changes);

/// A stage's image while it is built.
struct BuiltStage : ImageSetup {
  BuildTree tree;
  std::vector<BuiltLayer> layers;  ///< those of this build, bottom one first
  Digest key;                      ///< of all steps so far

  /// Returns it for another process, which reads it by parse().
  [[nodiscard]] Json to_json() const;
  static Result<BuiltStage> parse(const Places& places, const Json& text);
};

/// A stage that is built in a process of its own.
struct StageJob {
  std::size_t number = 0;
  std::string label;  ///< before each line of its output
  /// Called in that process. `need` waits for another stage and returns it.
  std::function<Result<Json>(const std::function<Result<Json>(std::size_t)>& need)> work;
};

/// Runs the jobs, of which at most `most` work at the same time; one that waits for another does
/// not count. Ends all at the first failure. Returns the results by number.
Result<std::map<std::size_t, Json>> run_side_by_side(const std::vector<StageJob>& jobs,
                                                     unsigned most);

/// Returns the instruction on one line, shortened, for the output and the image's history.
std::string shown(const Instruction& one);

/// Makes an image of one layer of a file or directory of the user. That of an unchanged file is
/// found by the file's identity, that of a directory is made again.
Result<ListedImage> image_of_file(const Places& places, const Config& config,
                                  const std::string& path);

/// Writes the image as a layout and imports it, which verifies it like any other. `name`: its name
/// in the store; empty: none.
Result<Digest> store_built(const Places& places, const Config& config, const BuildCache& cache,
                           const BuiltStage& built, const std::string& name);

// --- run ---

/// A command of a recipe, in the container of a step.
struct BuildCommand {
  std::vector<std::string> words;
  Variables environment;
  std::string workdir;
  std::vector<MountSpec> mounts;
  std::string user;                      ///< of USER: its home is HOME, unless the recipe sets it
  bool has_network = true;               ///< false: loopback only
  std::vector<std::string> debug_shell;  ///< runs in the state of a failure; empty: none
  bool is_quiet = false;                 ///< shows the end of its output, and only if it fails
};

/// Runs the command in the container. Its output goes to standard error. Ends all of its processes.
/// A failure is an error with the exit status.
Result<void> run_in(const MountedImage& image, const BuildCommand& command);

// --- copy ---

/// Files to copy into an image.
struct BuildCopy {
  std::vector<std::string> sources;  ///< paths or patterns, relative to the source's root
  std::string target;                ///< absolute; with '/' at its end, a directory
  std::optional<mode_t> mode;        ///< of all files; empty: their own
  std::string mode_changes;          ///< changes of chmod to their own modes: u=rwX,go=rX
  std::vector<std::string> excludes;
  bool keeps_parents = false;
  bool unpacks = false;  ///< tar archives among the sources are unpacked
  bool as_cp = false;    ///< a directory is copied as by cp -r, not its content

  /// Sets `mode` or `mode_changes` to the value of --chmod.
  Result<void> set_mode(const std::string& text);
  /// Returns the mode of a copy.
  [[nodiscard]] mode_t mode_for(mode_t own) const;
};

/// A file that a pattern has found, relative to the root.
using FoundFiles = std::vector<std::string>;

/// Finds the files of the sources below `root`, a directory open for reading. Links do not lead out
/// of it. `ignored`: the context's .dockerignore; null: none.
Result<FoundFiles> find_sources(int root, const BuildCopy& copy, const IgnoreFile* ignored);

/// Returns a digest of names, modes and contents of the files.
Result<Digest> digest_of_files(int root, const FoundFiles& files, const BuildCopy& copy,
                               const IgnoreFile* ignored);

/// Copies the files into the mounted image.
Result<void> copy_files(int from, const FoundFiles& files, const BuildCopy& copy,
                        const IgnoreFile* ignored, int image);

/// Creates the directory, with its parents, in the mounted image.
Result<void> make_directory_in(int image, const std::string& path);

/// Writes a file into the mounted image: a here-document.
Result<void> write_file_in(int image, const std::string& path, const std::string& text,
                           std::optional<mode_t> mode);

// --- builder ---

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
