#include "tool/build/build_step.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <map>
#include <utility>

#include "base/file.hpp"
#include "base/format.hpp"
#include "base/hash.hpp"
#include "base/json.hpp"
#include "base/process/kernel.hpp"
#include "base/system_call.hpp"
#include "base/text.hpp"
#include "export/archive.hpp"
#include "export/write_image.hpp"
#include "image/store/store.hpp"
#include "local/image_files.hpp"
#include "reference/location.hpp"
#include "registry/manifest.hpp"
#include "tool/images/obtain.hpp"
#include "tool/surroundings/terminal.hpp"

namespace spc::tool {
namespace {

constexpr std::size_t kMaxIgnoreFile = 16 << 20;
constexpr std::size_t kMaxSecret = 1 << 20;  // as a variable

/// A stage of a recipe: FROM and what follows.
struct Stage {
  std::string name;  ///< of AS; empty: none
  const Instruction* from = nullptr;
  std::vector<const Instruction*> steps;
};

/// In the comment of a layer in an image's history: the key of the step that made it.
constexpr std::string_view kStepOf = "step ";

/// An image of --cache-from.
struct CacheImage {
  std::string name;
  ListedImage image;
  std::map<std::string, std::size_t, std::less<>> steps;  ///< key to number of layers
};

/// An image, a stage or the context, mounted beside the image that a step changes.
struct OtherTree {
  BuildTree tree;
  std::string place;
  bool is_writable = false;  ///< changes are discarded
  bool is_context = false;
};

Error at_line(const BuildOrder& order, const Instruction& one, Error error) {
  return std::move(error).during(formatted("{}:{}: {}", order.file, one.line, one.name));
}

class Builder {
 public:
  Builder(const Places& places, const Config& config, const BuildOrder& order, BuildCache cache)
      : places_(places), config_(config), order_(order), cache_(std::move(cache)) {}

  Result<Digest> run(const std::string& name) {
    SPC_TRY(prepare());
    const std::size_t last = SPC_TRY(target());
    if (!order_.no_cache) find_cache_images();
    SPC_TRY(build_side_by_side(last));
    const BuiltStage* const built = SPC_TRY(build(last));
    return store_built(places_, config_, cache_, *built, name);
  }

 private:
  // --- recipe ---

  Result<void> prepare() {
    file_ =
        SPC_TRY(order_.is_definition ? parse_definition(order_.text, order_.file, order_.arguments)
                                     : parse_dockerfile(order_.text, order_.file));
    SPC_TRY(set_platform());
    for (const Instruction& one : file_.instructions) {
      if (one.name == "FROM") {
        SPC_TRY(begin_stage(one));
      } else if (stages_.empty() && one.name == "ARG") {
        SPC_TRY(global_argument(one));
      } else if (stages_.empty()) {
        return at_line(order_, one, Error(ErrorKind::invalid, "stands before the first FROM"));
      } else {
        stages_.back().steps.push_back(&one);
      }
    }
    if (stages_.empty())
      return Error(ErrorKind::invalid, formatted("{}: has no FROM", order_.file));
    built_.resize(stages_.size());
    for (const Stage& stage : stages_) total_ += stage.steps.size() + 1;
    if (order_.is_definition) here_ = SPC_TRY(absolute_path("."));
    if (order_.context.empty()) return {};
    context_ = SPC_TRY(own(::open(order_.context.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC),
                           "open context " + in_quotes(order_.context)));
    return order_.is_definition ? Result<void>() : read_ignore_file();
  }

  Result<void> read_ignore_file() {
    for (const std::string& path :
         {order_.file + ".dockerignore", order_.context + "/.dockerignore"}) {
      const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
      if (!file) continue;
      ignored_ = IgnoreFile::parse(
          SPC_TRY_DURING("read " + in_quotes(path), read_file(file.get(), kMaxIgnoreFile)));
      return {};
    }
    return {};
  }

  Result<void> set_platform() {
    if (!order_.platform.empty()) SPC_TRY(check_platform(order_.platform));
    const Platform host = Platform::host();
    for (const char* which : {"BUILD", "TARGET"}) {
      const std::string prefix(which);
      globals_[prefix + "PLATFORM"] = host.str();
      globals_[prefix + "OS"] = host.os;
      globals_[prefix + "ARCH"] = host.architecture;
      globals_[prefix + "VARIANT"] = host.variant;
    }
    return {};
  }

  Result<void> global_argument(const Instruction& one) {
    const auto pairs = parse_assignments(one, file_.escape);
    if (!pairs) return at_line(order_, one, pairs.error());
    for (const Assignment& pair : *pairs) {
      const auto given = order_.arguments.find(pair.name);
      if (given != order_.arguments.end()) {
        globals_[pair.name] = given->second;
      } else if (pair.has_value) {
        const auto value = expand(pair.value, globals_, file_.escape);
        if (!value) return at_line(order_, one, value.error());
        globals_[pair.name] = *value;
      }
    }
    return {};
  }

  Result<void> begin_stage(const Instruction& one) {
    const auto words = expand_words(one.text, globals_, file_.escape);
    if (!words) return at_line(order_, one, words.error());
    const bool named = words->size() == 3 && is_word((*words)[1], "AS");
    if (words->size() != 1 && !named)
      return at_line(order_, one, Error(ErrorKind::invalid, "is not FROM IMAGE [AS NAME]"));
    Stage stage{.name = named ? words->back() : "", .from = &one, .steps = {}};
    for (char& c : stage.name) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    if (named && stage_of(stage.name))
      return at_line(order_, one,
                     Error(ErrorKind::invalid, formatted("a stage {} exists already", stage.name)));
    stages_.push_back(std::move(stage));
    return {};
  }

  static bool is_word(std::string_view text, std::string_view word) {
    return std::equal(text.begin(), text.end(), word.begin(), word.end(), [](char a, char b) {
      return std::toupper(static_cast<unsigned char>(a)) == b;
    });
  }

  std::optional<std::size_t> stage_of(std::string_view name) const {
    std::string lower(name);
    for (char& c : lower) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    for (std::size_t i = stages_.size(); i-- > 0;) {
      if (stages_[i].name == lower || std::to_string(i) == lower) return i;
    }
    return std::nullopt;
  }

  Result<std::size_t> target() const {
    if (order_.target.empty()) return stages_.size() - 1;
    if (const auto found = stage_of(order_.target)) return *found;
    std::vector<std::string> names;
    for (const Stage& stage : stages_) {
      if (!stage.name.empty()) names.push_back(stage.name);
    }
    return Error(ErrorKind::invalid,
                 formatted("--target: {} has no stage {}", order_.file, in_quotes(order_.target)))
        .hint(names.empty() ? "its stages have no names" : "it has: " + joined(names, ", "));
  }

  // --- stages ---

  /// Adds a stage and those that it names. What only its variables name is built when it is met.
  void add_needed(std::size_t index, std::set<std::size_t>& needed) const {
    if (!needed.insert(index).second) return;
    const auto add = [&](const std::string& text) {
      const auto name = expand(text, globals_, file_.escape);
      const auto stage = name ? stage_of(*name) : std::nullopt;
      if (stage && *stage < index) add_needed(*stage, needed);
    };
    add(stages_[index].from->text.substr(0, stages_[index].from->text.find_first_of(" \t")));
    for (const Instruction* one : stages_[index].steps) {
      for (const auto& [flag, value] : one->flags) {
        if (flag == "from") add(value);
        if (flag == "mount") add(parts_of(value)["from"]);
      }
    }
  }

  /// Builds the needed stages in processes of their own, one on each processor.
  Result<void> build_side_by_side(std::size_t last) {
    std::set<std::size_t> needed;
    add_needed(last, needed);
    if (needed.size() < 2 || usable_processors() < 2 || order_.debug_shell) return {};
    std::vector<StageJob> jobs;
    for (const std::size_t index : needed) {
      const Stage& stage = stages_[index];
      StageJob job{.number = index, .label = stage.name, .work = {}};
      if (stage.name.empty()) job.label = "stage " + std::to_string(index);
      job.work = [this, index, needed](const auto& need) -> Result<Json> {
        need_ = need;
        needed_ = needed;
        own_ = index;
        at_ = 0;
        total_ = stages_[index].steps.size() + 1;
        const BuiltStage* const built = SPC_TRY(build(index));
        return built->to_json();
      };
      jobs.push_back(std::move(job));
    }
    const auto done = SPC_TRY(run_side_by_side(jobs, usable_processors()));
    for (const auto& [index, stage] : done)
      built_[index] = SPC_TRY(BuiltStage::parse(places_, stage));
    return {};
  }

  /// Builds a stage and those that it needs, each once.
  Result<const BuiltStage*> build(std::size_t index) {
    if (!built_[index] && index != own_ && needed_.contains(index)) {
      const Json stage = SPC_TRY(need_(index));
      built_[index] = SPC_TRY(BuiltStage::parse(places_, stage));
    }
    if (built_[index]) return const_cast<const BuiltStage*>(&*built_[index]);
    const Stage& stage = stages_[index];
    BuiltStage built;
    auto begun = begin(index, built);
    if (!begun) return at_line(order_, *stage.from, std::move(begun).error());
    for (const Instruction* one : stage.steps) {
      const auto done = step(index, *one, built);
      if (!done) return at_line(order_, *one, done.error());
    }
    built_[index] = std::move(built);
    return const_cast<const BuiltStage*>(&*built_[index]);
  }

  Result<void> begin(std::size_t index, BuiltStage& built) {
    const Instruction& one = *stages_[index].from;
    const auto words = SPC_TRY(expand_words(one.text, globals_, file_.escape));
    const std::string& name = words.front();
    say(one);
    const auto parent = stage_of(name);
    if (parent && *parent < index) {
      built = *SPC_TRY(build(*parent));
      built.arguments.clear();
      return {};
    }
    if (name == "scratch") {
      built.config = Json{{"architecture", Platform::host().architecture}, {"os", "linux"}};
      built.key = Sha256::of("scratch");
      return {};
    }
    const std::string platform = SPC_TRY(expand(one.flag("platform"), globals_, file_.escape));
    if (!platform.empty()) SPC_TRY(check_platform(platform));
    ListedImage image = SPC_TRY(image_of_name(name));
    static_cast<ImageSetup&>(built) = SPC_TRY(ImageSetup::parse(image.record->config));
    built.key = image.digest;
    built.tree.image = std::move(image);
    return triggers(index, built);
  }

  static Result<void> check_platform(const std::string& platform) {
    const Platform wanted = SPC_TRY_DURING("--platform", Platform::parse(platform));
    if (wanted.architecture == Platform::host().architecture) return {};
    return Error(ErrorKind::invalid, formatted("--platform={}: this machine runs {} only", platform,
                                               Platform::host().str()))
        .hint("build on a node of that architecture");
  }

  /// Returns the image of FROM or --from. A file of the user becomes an image of one layer.
  Result<ListedImage> image_of_name(const std::string& name) {
    const auto location = ImageLocation::parse(name, config_.default_registry);
    if (location && location->kind == ImageLocation::Kind::path)
      return image_of_file(places_, config_, location->path);
    PullRequest wanted{.image = name, .platform = {}, .pull = order_.pull};
    wanted.quiet = order_.quiet;
    return std::move(SPC_TRY(obtain(places_, config_, wanted)).image);
  }

  /// Runs the ONBUILD instructions of the stage's image.
  Result<void> triggers(std::size_t index, BuiltStage& built) {
    Json* const run = &built.config["config"];
    const Json* const found = run->find("OnBuild");
    if (found == nullptr) return {};
    std::string text;
    for (const Json& one : found->elements()) text += one.as_text() + "\n";
    run->erase("OnBuild");
    if (text.empty()) return {};
    const auto parsed = SPC_TRY(parse_dockerfile(text, "ONBUILD"));
    for (const Instruction& one : parsed.instructions) {
      SPC_TRY_DURING(formatted("ONBUILD {}", one.name), step(index, one, built));
    }
    return {};
  }

  // --- cache of other machines ---

  /// Finds the steps of the images of --cache-from. One that cannot be had is not needed.
  void find_cache_images() {
    for (const std::string& name : order_.cache_from) {
      auto image = image_of_name(name);
      const auto config = image ? Json::parse(image->record->config) : Result<Json>(image.error());
      if (!config) {
        report_error("warning: --cache-from: " + config.error().message());
        continue;
      }
      CacheImage found{.name = name, .image = std::move(*image), .steps = {}};
      std::size_t layers = found.image.record->layers.size();
      const auto known = parse_image_config(found.image.record->config, name);
      if (!known || known->diff_ids.size() != layers) continue;  // it has the same layer twice
      const Json* const history = config->find("history");
      static const Json::Array none;
      const Json::Array& entries = history == nullptr ? none : history->elements();
      for (auto one = entries.rbegin(); one != entries.rend() && layers > 0; ++one) {
        const Json* const empty = one->find("empty_layer");
        if (empty != nullptr && empty->as_boolean()) continue;
        const Json* const comment = one->find("comment");
        if (comment != nullptr && comment->as_text().starts_with(kStepOf))
          found.steps[comment->as_text().substr(kStepOf.size())] = layers;
        --layers;
      }
      cache_images_.push_back(std::move(found));
    }
  }

  /// Continues with the layers of an image of --cache-from that has this step. Returns false if
  /// none has.
  bool take_from_images(BuiltStage& built) const {
    for (const CacheImage& one : cache_images_) {
      const auto found = one.steps.find(built.key.hex());
      if (found == one.steps.end()) continue;
      built.tree = {.image = one.image, .changes = {}, .layers = found->second};
      built.layers.clear();
      if (!order_.quiet) std::fprintf(stderr, "      cached in %s\n", one.name.c_str());
      return true;
    }
    return false;
  }

  // --- steps ---

  Result<void> step(std::size_t index, const Instruction& one, BuiltStage& built) {
    say(one);
    if (one.name == "ARG") return argument(one, built);
    if (one.name == "RUN") return run_command(index, one, built);
    if (one.name == "COPY" || one.name == "ADD") return copy(index, one, built);
    if (one.name == "WORKDIR") return enter_directory(one, built);
    if (one.name == "APPTAINER") return write_environment(one, built);
    SPC_TRY(built.apply(one, file_.escape));
    built.key = Sha256::of(built.key.hex() + "\n" + text_of(one, built));
    note(one, built, true);
    return {};
  }

  Result<void> argument(const Instruction& one, BuiltStage& built) {
    for (const Assignment& pair : SPC_TRY(parse_assignments(one, file_.escape))) {
      const auto given = order_.arguments.find(pair.name);
      const auto global = globals_.find(pair.name);
      if (given != order_.arguments.end()) {
        built.arguments[pair.name] = given->second;
      } else if (pair.has_value) {
        built.arguments[pair.name] = SPC_TRY(expand(pair.value, built.variables(), file_.escape));
      } else if (global != globals_.end()) {
        built.arguments[pair.name] = global->second;
      }
    }
    return {};
  }

  /// Adds the instruction to the configuration's history.
  static void note(const Instruction& one, BuiltStage& built, bool is_empty) {
    Json entry{{"created_by", shown(one)}};
    if (is_empty)
      entry["empty_layer"] = true;
    else
      entry["comment"] = std::string(kStepOf) + built.key.hex();
    if (built.config.find("history") == nullptr) built.config["history"] = Json::array();
    built.config["history"].push_back(std::move(entry));
  }

  std::string text_of(const Instruction& one, const BuiltStage& built) const {
    std::string text = one.name;
    for (const auto& [name, value] : one.flags) text += " --" + name + "=" + value;
    text += " " + one.text;
    for (const HereDocument& document : one.documents) text += "\n" + document.text;
    for (const auto& [name, value] : built.variables()) text += "\n" + name + "=" + value;
    return text + "\n" + built.workdir + "\n" + joined(built.shell, " ");
  }

  /// Runs or finds the step that makes a layer. `content`: digest of what it takes besides the
  /// instruction.
  Result<void> layer(const Instruction& one, BuiltStage& built, const std::string& content,
                     const std::function<Result<void>(const MountedImage&)>& work) {
    const BuildTree tree = built.tree;
    built.key = Sha256::of(built.key.hex() + "\n" + text_of(one, built));
    built.key = Sha256::of(built.key.hex() + content);
    note(one, built, false);
    auto found =
        order_.no_cache && !fresh_.contains(built.key) ? std::nullopt : cache_.find(built.key);
    if (!found && !order_.no_cache && take_from_images(built)) return {};
    const auto begun = std::chrono::steady_clock::now();
    if (!found) {
      if (order_.no_cache) forget(built.key);
      found = SPC_TRY(cache_.make(built.key, tree, config_, work));
      fresh_.insert(built.key);
    }
    tell_end(*found, begun, found && !fresh_.contains(built.key));
    built.tree.changes.push_back(cache_.directory_of(built.key));
    built.layers.push_back(*found);
    return {};
  }

  void forget(const Digest& key) const { cache_.forget(key); }

  /// Returns the environment of a RUN: the image's variables and the declared arguments.
  Variables environment_of_run(const BuiltStage& built) const {
    Variables all = built.variables();
    for (const char* name : {"http_proxy", "https_proxy", "no_proxy", "ftp_proxy", "all_proxy"}) {
      std::string upper(name);
      for (char& c : upper) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
      for (const std::string& one : {std::string(name), upper}) {
        if (const auto given = order_.arguments.find(one); given != order_.arguments.end())
          all.emplace(one, given->second);
      }
    }
    all.emplace("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
    return all;
  }

  Result<void> run_command(std::size_t index, const Instruction& one, BuiltStage& built) {
    BuildCommand command{.words = one.list,
                         .environment = environment_of_run(built),
                         .workdir = built.workdir,
                         .mounts = {}};
    command.is_quiet = order_.quiet;
    if (order_.debug_shell) command.debug_shell = {built.shell.front()};
    if (!one.is_list) {
      command.words = built.shell;
      command.words.push_back(script_of(one));
    }
    std::string content;
    std::vector<OtherTree> others;
    SPC_TRY(mounts_of(index, one, built, command, content, others));
    const std::string network = one.flag("network");
    if (!network.empty() && network != "default" && network != "host" && network != "none")
      return Error(ErrorKind::invalid, formatted("--network={}: is not a network", network))
          .hint("default and host: the host's network; none: loopback only");
    if (const std::string security = one.flag("security");
        !security.empty() && security != "sandbox")
      return Error(ErrorKind::invalid,
                   formatted("--security={}: steps have no privilege", security))
          .hint("drop the flag: root in a step can do what needs no privilege on the host");
    command.has_network = network != "none";
    if (const Json* const user = built.run_settings().find("User")) command.user = user->as_text();
    return layer(one, built, content, [&](const MountedImage& image) -> Result<void> {
      std::vector<MountedImage> mounted;
      for (const OtherTree& other : others) {
        ImageFiles opened;
        if (other.is_context)
          opened.directory = SPC_TRY(
              own(::openat(context_.get(), ".", O_PATH | O_DIRECTORY | O_CLOEXEC), "open context"));
        else
          opened = SPC_TRY(other.tree.open(places_));
        const WritableLayer writable{.wanted = other.is_writable, .size = config_.upper_size};
        mounted.push_back(SPC_TRY(mount_image(std::move(opened), other.place, writable)));
      }
      return run_in(image, command);
    });
  }

  /// Returns the shell's script. A here-document that is the whole command is the script itself.
  static std::string script_of(const Instruction& one) {
    if (one.documents.empty()) return one.text;
    const std::string_view text = one.text;
    const bool whole = one.documents.size() == 1 && text.starts_with("<<") &&
                       text.find_first_of(" \t") == std::string_view::npos;
    if (whole && !one.documents[0].text.starts_with("#!")) return one.documents[0].text;
    if (whole) {
      return "f=/tmp/.here-document; cat >$f <<'" + one.documents[0].name + "'\n" +
             one.documents[0].text + one.documents[0].name +
             "\nchmod 0700 $f && $f; s=$?; rm -f $f; exit $s";
    }
    std::string script = one.text + "\n";
    for (const HereDocument& document : one.documents)
      script += document.text + document.name + "\n";
    return script;
  }

  /// The parts of a flag `--mount=type=cache,target=/x`.
  static std::map<std::string, std::string> parts_of(std::string_view text) {
    std::map<std::string, std::string> parts;
    for (const std::string_view part : split(text, ',')) {
      const auto equals = std::min(part.find('='), part.size());
      std::string key(part.substr(0, equals));
      if (key == "dst" || key == "destination") key = "target";
      if (key == "src") key = "source";
      if (key == "ro") key = "readonly";
      if (key == "readwrite") key = "rw";
      parts[key] = equals == part.size() ? "true" : part.substr(equals + 1);
    }
    return parts;
  }

  Result<void> mounts_of(std::size_t index, const Instruction& one, const BuiltStage& built,
                         BuildCommand& command, std::string& content,
                         std::vector<OtherTree>& others) {
    for (const auto& [flag, text] : one.flags) {
      if (flag != "mount") continue;
      auto parts = parts_of(SPC_TRY(expand(text, built.variables(), file_.escape)));
      const std::string type = parts.count("type") != 0 ? parts["type"] : "bind";
      MountSpec mount{.origin = "RUN --mount"};
      mount.shown_as = text;
      mount.target = parts["target"];
      if (!mount.target.empty() && mount.target[0] != '/')
        mount.target = built.workdir + "/" + mount.target;
      if (type == "tmpfs") {
        mount.kind = MountSpec::Kind::tmpfs;
      } else if (type == "cache") {
        mount.source = SPC_TRY(cache_directory(parts, mount.target));
      } else if (type == "secret") {
        if (!SPC_TRY(secret(parts, mount, command.environment))) continue;
      } else if (type == "bind") {
        SPC_TRY(bound(index, parts, mount, content, others));
      } else {
        return Error(ErrorKind::invalid, formatted("--mount=type={}: is not supported", type))
            .hint("types: bind, cache, tmpfs, secret");
      }
      if (mount.target.empty())
        return Error(ErrorKind::invalid, formatted("--mount={}: has no target", text));
      command.mounts.push_back(std::move(mount));
    }
    return {};
  }

  Result<std::string> cache_directory(std::map<std::string, std::string>& parts,
                                      const std::string& target) const {
    const std::string id = parts["id"].empty() ? target : parts["id"];
    const std::string path = places_.store + "/build/mounts/" + Sha256::of(id).hex().substr(0, 32);
    SPC_TRY(make_directories(path));
    return path;
  }

  /// Returns whether there is something to mount: false for a secret that is not given and not
  /// required, or that becomes a variable.
  Result<bool> secret(std::map<std::string, std::string>& parts, MountSpec& mount,
                      Variables& environment) const {
    const std::string id = !parts["id"].empty() ? parts["id"] : parts["target"];
    const auto found = order_.secrets.find(id);
    if (found == order_.secrets.end()) {
      if (parts["required"] != "true") return false;
      return Error(ErrorKind::invalid, formatted("secret {} is required", in_quotes(id)))
          .hint(formatted("--secret id={},src=FILE", id));
    }
    if (const std::string name = parts["env"]; !name.empty()) {
      const UniqueFd file(::open(found->second.c_str(), O_RDONLY | O_CLOEXEC));
      if (!file) return Error::from_errno(errno, "open secret " + in_quotes(found->second));
      auto text = SPC_TRY_DURING("read secret " + in_quotes(found->second),
                                 read_file(file.get(), kMaxSecret));
      environment[name] = std::move(text);
      if (parts["target"].empty()) return false;
    }
    mount.source = found->second;
    mount.flags = SPC_TRY(parse_mounts("/a:/b:ro")).front().flags;
    if (mount.target.empty()) mount.target = "/run/secrets/" + id;
    return true;
  }

  Result<void> bound(std::size_t index, std::map<std::string, std::string>& parts, MountSpec& mount,
                     std::string& content, std::vector<OtherTree>& others) {
    const bool is_writable = parts["rw"] == "true";
    if (!is_writable) mount.flags = SPC_TRY(parse_mounts("/a:/b:ro")).front().flags;
    const std::string place = places_.workspace() + "-from" + std::to_string(others.size());
    if (!parts["from"].empty()) {
      SPC_TRY(make_directories(place));
      others.push_back({SPC_TRY(tree_of(index, parts["from"], content)), place, is_writable});
      mount.source = place + "/root/" + parts["source"];
      return {};
    }
    if (!context_) return Error(ErrorKind::invalid, "--mount=type=bind: there is no context");
    BuildCopy copy;
    copy.sources = {parts["source"].empty() ? "." : parts["source"]};
    const auto files = SPC_TRY(find_sources(context_.get(), copy, &ignored_));
    if (files.empty())
      return Error(ErrorKind::not_found, formatted("no file {}", in_quotes(copy.sources.front())));
    content += SPC_TRY(digest_of_files(context_.get(), files, copy, &ignored_)).hex();
    mount.source = order_.context + "/" + files.front();
    if (is_writable) {
      SPC_TRY(make_directories(place));
      others.push_back({{}, place, true, true});
      mount.source = place + "/root/" + files.front();
    }
    return {};
  }

  Result<void> enter_directory(const Instruction& one, BuiltStage& built) {
    SPC_TRY(built.apply(one, file_.escape));
    return layer(one, built, "", [&](const MountedImage& image) {
      return make_directory_in(image.root.get(), built.workdir);
    });
  }

  /// Writes the environment of a definition file's base image where a SIF has it.
  Result<void> write_environment(const Instruction& one, BuiltStage& built) {
    std::string settings;
    for (const auto& [name, value] : built.environment)
      settings += "env=" + name + "=" + value + '\0';
    const auto files = apptainer_files(settings, "");
    built.environment["APPTAINER_ENVIRONMENT"] = "/.singularity.d/env/91-environment.sh";
    built.environment["SINGULARITY_ENVIRONMENT"] = "/.singularity.d/env/91-environment.sh";
    return layer(one, built, files.front().text, [&](const MountedImage& image) {
      return write_file_in(image.root.get(), files.front().path, files.front().text, 0755);
    });
  }

  // --- copies ---

  Result<BuildCopy> copy_of(const Instruction& one, const BuiltStage& built) const {
    BuildCopy copy;
    auto words = one.list;
    if (!one.is_list) words = SPC_TRY(expand_words(one.text, built.variables(), file_.escape));
    if (words.size() < 2) return Error(ErrorKind::invalid, "needs a source and a target");
    copy.target = words.back();
    if (!copy.target.starts_with('/'))
      copy.target = built.workdir + (built.workdir.ends_with('/') ? "" : "/") + copy.target;
    words.pop_back();
    if (words.size() > 1 && !copy.target.ends_with('/'))
      return Error(ErrorKind::invalid, "with several sources the target is a directory")
          .hint(formatted("write {}/", words.back()));
    copy.sources = std::move(words);
    for (const auto& [flag, value] : one.flags) {
      if (flag == "exclude") copy.excludes.push_back(value);
      if (flag != "chmod") continue;
      const std::string text = SPC_TRY(expand(value, built.variables(), file_.escape));
      SPC_TRY(copy.set_mode(text));
    }
    copy.keeps_parents = one.flag("parents") == "true";
    copy.unpacks = one.name == "ADD" && one.flag("unpack") != "false";
    copy.as_cp = one.flag("as") == "cp";
    if (copy.as_cp && one.flag("from").empty()) {
      for (std::string& source : copy.sources)
        source = source.starts_with('/') ? source : here_ + "/" + source;
    }
    return copy;
  }

  Result<void> copy(std::size_t index, const Instruction& one, BuiltStage& built) {
    BuildCopy copy = SPC_TRY(copy_of(one, built));
    std::vector<HereDocument> documents;
    SPC_TRY(take_documents(one, built, copy, documents));
    if (const std::string from = one.flag("from"); !from.empty())
      return copy_from(index, one, built, copy, SPC_TRY(expand(from, built.variables(), '\\')));
    const auto is_url = [](const std::string& source) {
      return source.find("://") != std::string::npos || source.starts_with("git@");
    };
    if (one.name == "ADD" && std::ranges::any_of(copy.sources, is_url))
      return add_urls(one, built, copy);
    if (!context_ && !copy.sources.empty())
      return Error(ErrorKind::invalid, "there is no context").hint("scontainer build DIRECTORY");
    const auto files = SPC_TRY(find_sources(context_.get(), copy, &ignored_));
    const Digest content = SPC_TRY(digest_of_files(context_.get(), files, copy, &ignored_));
    return layer(one, built, content.hex(), [&](const MountedImage& image) -> Result<void> {
      for (const HereDocument& document : documents) {
        const bool into = copy.target.ends_with('/') || documents.size() + files.size() > 1;
        SPC_TRY(write_file_in(image.root.get(),
                              into ? copy.target + "/" + document.name : copy.target, document.text,
                              copy.mode));
      }
      if (files.empty()) return {};
      return copy_files(context_.get(), files, copy, &ignored_, image.root.get());
    });
  }

  /// Files of servers, each in a layer. They are not unpacked.
  Result<void> add_urls(const Instruction& one, BuiltStage& built, BuildCopy copy) {
    copy.unpacks = false;
    if (!copy.mode) copy.mode = 0600;
    const std::string checksum = SPC_TRY(expand(one.flag("checksum"), built.variables(), '\\'));
    for (const std::string& url : std::exchange(copy.sources, {})) {
      const std::string place = SPC_TRY(cache_.fetch(url, checksum, config_));
      const UniqueFd from(::open(place.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
      copy.sources = {"*"};
      const auto files = SPC_TRY(find_sources(from.get(), copy, nullptr));
      const Digest content = SPC_TRY(digest_of_files(from.get(), files, copy, nullptr));
      SPC_TRY(layer(one, built, content.hex(), [&](const MountedImage& image) -> Result<void> {
        return copy_files(from.get(), files, copy, nullptr, image.root.get());
      }));
    }
    return {};
  }

  /// Moves the here-documents among the sources to `documents`, with variables replaced.
  Result<void> take_documents(const Instruction& one, const BuiltStage& built, BuildCopy& copy,
                              std::vector<HereDocument>& documents) const {
    std::erase_if(copy.sources, [](const std::string& source) { return source.starts_with("<<"); });
    for (HereDocument document : one.documents) {
      if (document.expands) {
        std::string text;
        for (const std::string_view line : split(document.text, '\n')) {
          // Quotes in a here-document are text.
          std::string escaped;
          for (const char c : line) {
            if (c == '\'' || c == '"') escaped += file_.escape;
            escaped += c;
          }
          text += (text.empty() ? "" : "\n") +
                  SPC_TRY(expand(escaped, built.variables(), file_.escape));
        }
        document.text = text;
      }
      documents.push_back(std::move(document));
    }
    return {};
  }

  /// Returns the files of an earlier stage or an image, and adds their digest to `content`.
  Result<BuildTree> tree_of(std::size_t index, const std::string& from, std::string& content) {
    const auto stage = stage_of(from);
    BuildTree tree;
    if (stage && *stage < index) {
      const BuiltStage* const other = SPC_TRY(build(*stage));
      content += other->key.hex();
      return other->tree;
    }
    tree.image = SPC_TRY_DURING("from", image_of_name(from));
    content += tree.image->digest.hex();
    return tree;
  }

  Result<void> copy_from(std::size_t index, const Instruction& one, BuiltStage& built,
                         const BuildCopy& copy, const std::string& from) {
    std::string content;
    const BuildTree source = SPC_TRY(tree_of(index, from, content));
    const std::string place = places_.workspace() + "-from";
    SPC_TRY(make_directories(place));
    return layer(one, built, content, [&](const MountedImage& image) -> Result<void> {
      auto opened = SPC_TRY(source.open(places_));
      const auto mounted = SPC_TRY(mount_image(std::move(opened), place, {.wanted = false}));
      const auto root =
          SPC_TRY(own(::openat(mounted.root.get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC),
                      "open the image to copy from"));
      const auto files = SPC_TRY(find_sources(root.get(), copy, nullptr));
      return copy_files(root.get(), files, copy, nullptr, image.root.get());
    });
  }

  // --- progress ---

  void say(const Instruction& one) {
    ++at_;
    if (order_.quiet) return;
    std::fprintf(stderr, "[%zu/%zu] %s\n", at_, std::max(at_, total_), shown(one).c_str());
  }

  void tell_end(const BuiltLayer& layer, std::chrono::steady_clock::time_point begun,
                bool cached) const {
    if (order_.quiet) return;
    const auto spent = std::chrono::duration_cast<std::chrono::milliseconds>(
                           std::chrono::steady_clock::now() - begun)
                           .count();
    if (cached)
      std::fprintf(stderr, "      cached\n");
    else
      std::fprintf(stderr, "      %.1f s, %s\n", static_cast<double>(spent) / 1000,
                   human_bytes(layer.size).c_str());
  }

  const Places& places_;
  const Config& config_;
  const BuildOrder& order_;
  BuildCache cache_;
  Dockerfile file_;
  Variables globals_;
  std::vector<Stage> stages_;
  std::vector<std::optional<BuiltStage>> built_;
  UniqueFd context_;
  std::string here_;  // of a definition file: the work directory
  IgnoreFile ignored_;
  std::vector<CacheImage> cache_images_;
  std::set<Digest> fresh_;
  std::size_t at_ = 0, total_ = 0;
  // In the process of one stage: which one, those that other processes build, and how to get them.
  std::size_t own_ = 0;
  std::set<std::size_t> needed_;
  std::function<Result<Json>(std::size_t)> need_;
};

}  // namespace

Result<Digest> build_image(const Places& places, const Config& config, const BuildOrder& order,
                           const std::string& name) {
  auto cache = SPC_TRY(BuildCache::open(places));
  return Builder(places, config, order, std::move(cache)).run(name);
}

}  // namespace spc::tool
