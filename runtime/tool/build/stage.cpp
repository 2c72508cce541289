#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <ctime>
#include <utility>

#include "base/file.hpp"
#include "base/format.hpp"
#include "base/hash.hpp"
#include "base/process/child.hpp"
#include "base/text.hpp"
#include "export/write_image.hpp"
#include "image/store/store.hpp"
#include "local/image_files.hpp"
#include "registry/manifest.hpp"
#include "tool/build/build_step.hpp"
#include "tool/images/obtain.hpp"

namespace spc::tool {

// --- settings ---

Result<ImageSetup> ImageSetup::parse(const std::string& config) {
  ImageSetup setup;
  setup.config = SPC_TRY(parse_json_object(config, "the image's configuration"));
  const Json* const run = setup.config.find("config");
  if (run == nullptr) return setup;
  if (const Json* list = run->find("Env"); list != nullptr) {
    for (const Json& one : list->elements()) {
      const std::string& variable = one.as_text();
      const auto equals = std::min(variable.find('='), variable.size());
      setup.environment[variable.substr(0, equals)] =
          variable.substr(std::min(equals + 1, variable.size()));
    }
  }
  if (const Json* text = run->find("WorkingDir"); text != nullptr && !text->as_text().empty())
    setup.workdir = text->as_text();
  if (const Json* shell = run->find("Shell"); shell != nullptr && shell->size() > 0) {
    setup.shell.clear();
    for (const Json& word : shell->elements()) setup.shell.push_back(word.as_text());
  }
  return setup;
}

ImageSetup ImageSetup::of_settings(const std::string& settings) {
  ImageSetup setup;
  Json& run = setup.run_settings();
  for (const auto& [key, member] :
       {std::pair("entrypoint", "Entrypoint"), std::pair("cmd", "Cmd"), std::pair("env", "Env")}) {
    if (const auto values = setting_values(settings, key); !values.empty()) run[member] = values;
  }
  for (const auto& workdir : setting_values(settings, "workdir"))
    run["WorkingDir"] = setup.workdir = workdir;
  for (const std::string& variable : setting_values(settings, "env")) {
    const auto equals = std::min(variable.find('='), variable.size());
    setup.environment[variable.substr(0, equals)] =
        variable.substr(std::min(equals + 1, variable.size()));
  }
  setup.config["architecture"] = Platform::host().architecture;
  setup.config["os"] = "linux";
  setup.config["rootfs"] = Json{{"type", "layers"}, {"diff_ids", Json::array()}};
  return setup;
}

Result<std::string> lines_of_changes(const std::vector<std::string>& changes) {
  std::string lines;
  for (std::string one : changes) {
    const auto end = one.find_first_of(" \t=");
    if (end != std::string::npos) one[end] = ' ';
    if (one.find('\n') != std::string::npos)
      return Error(ErrorKind::invalid,
                   formatted("--change: {}: has several lines", in_quotes(one)));
    lines += one + "\n";
  }
  const auto parsed = SPC_TRY(parse_dockerfile(lines, "--change"));
  constexpr std::string_view kAllowed[] = {"ENV",  "LABEL",      "CMD",    "ENTRYPOINT", "WORKDIR",
                                           "USER", "STOPSIGNAL", "EXPOSE", "VOLUME",     "ONBUILD"};
  for (const Instruction& one : parsed.instructions) {
    if (std::ranges::find(kAllowed, one.name) == std::end(kAllowed))
      return Error(ErrorKind::invalid, formatted("--change: {} changes files", one.name))
          .hint(
              "allowed are ENV, LABEL, CMD, ENTRYPOINT, WORKDIR, USER and the like; for others "
              "use scontainer build");
  }
  return lines;
}

Result<void> change_settings(ArchiveSource& source, int root,
                             const std::vector<std::string>& changes) {
  if (changes.empty()) return {};
  const std::string lines = SPC_TRY(lines_of_changes(changes));
  const auto parsed = SPC_TRY(parse_dockerfile(lines, "--change"));
  const std::string settings = SPC_TRY(settings_of(source.opened, root));
  ImageSetup setup;
  if (source.config.empty())
    setup = ImageSetup::of_settings(settings);
  else
    setup = SPC_TRY(ImageSetup::parse(source.config));
  for (const Instruction& one : parsed.instructions)
    SPC_TRY_DURING("--change: " + one.name, setup.apply(one, parsed.escape));
  source.config = setup.config.str();
  const auto changed = SPC_TRY(parse_image_config(source.config, "--change"));
  source.opened.settings = settings_of(changed);
  return {};
}

Variables ImageSetup::variables() const {
  Variables all = arguments;
  for (const auto& [name, value] : environment) all[name] = value;
  return all;
}

Json& ImageSetup::run_settings() { return config["config"]; }

namespace {

/// Parses a duration as in `1m30s` to nanoseconds.
Result<std::uint64_t> nanoseconds_of(const std::string& text) {
  constexpr std::pair<std::string_view, double> kUnits[] = {{"ns", 1},     {"us", 1e3}, {"ms", 1e6},
                                                            {"h", 3600e9}, {"m", 60e9}, {"s", 1e9}};
  double sum = 0;
  std::string_view left = text;
  while (!left.empty()) {
    const auto digits = std::min(left.find_first_not_of("0123456789."), left.size());
    const std::string number(left.substr(0, digits));
    left.remove_prefix(digits);
    const auto* const unit =
        std::ranges::find_if(kUnits, [&](const auto& one) { return left.starts_with(one.first); });
    if (number.empty() || unit == std::end(kUnits))
      return Error(ErrorKind::invalid, formatted("{} is not a duration", in_quotes(text)))
          .hint("for example 30s or 1m30s");
    left.remove_prefix(unit->first.size());
    sum += std::strtod(number.c_str(), nullptr) * unit->second;
  }
  return static_cast<std::uint64_t>(sum);
}

/// Applies HEALTHCHECK. Only Docker runs the check.
Result<void> set_health_check(const Instruction& one, const std::vector<std::string>& list,
                              Json& run) {
  constexpr std::pair<std::string_view, std::string_view> kTimes[] = {
      {"interval", "Interval"},
      {"timeout", "Timeout"},
      {"start-period", "StartPeriod"},
      {"start-interval", "StartInterval"}};
  const auto end = std::min(one.text.find_first_of(" \t"), one.text.size());
  const std::string word = one.text.substr(0, end);
  const std::string command(trimmed(std::string_view(one.text).substr(end)));
  Json check = Json::object();
  if (word == "NONE" || word == "none") {
    check["Test"] = std::vector<std::string>{"NONE"};
  } else if ((word == "CMD" || word == "cmd") && !command.empty()) {
    std::vector<std::string> test = {list.empty() ? "CMD-SHELL" : "CMD"};
    if (list.empty()) test.push_back(command);
    test.insert(test.end(), list.begin(), list.end());
    check["Test"] = test;
  } else {
    return Error(ErrorKind::invalid, "is not HEALTHCHECK [OPTIONS] CMD COMMAND, or NONE");
  }
  for (const auto& [flag, member] : kTimes) {
    if (!one.flag(flag).empty())
      check[member] = SPC_TRY_DURING(formatted("--{}", flag), nanoseconds_of(one.flag(flag)));
  }
  if (const std::string text = one.flag("retries"); !text.empty()) {
    unsigned retries = 0;
    const auto read = std::from_chars(text.data(), text.data() + text.size(), retries);
    if (read.ec != std::errc() || read.ptr != text.data() + text.size())
      return Error(ErrorKind::invalid, formatted("--retries={}: is not a number", text));
    check["Retries"] = retries;
  }
  run["Healthcheck"] = std::move(check);
  return {};
}

/// Returns the words of a JSON list in an instruction's text; empty if there is none.
std::vector<std::string> list_in(std::string_view text) {
  std::vector<std::string> words;
  const auto begin = text.find('[');
  if (begin == std::string_view::npos ||
      text.substr(0, begin).find_first_not_of("CMDcmd \t") != std::string_view::npos)
    return words;
  const auto parsed = Json::parse(text.substr(begin));
  if (!parsed || !parsed->is_array()) return words;
  for (const Json& word : parsed->elements()) words.push_back(word.as_text());
  return words;
}

}  // namespace

Result<void> ImageSetup::apply(const Instruction& one, char escape) {
  Json& run = run_settings();
  if (one.name == "ENV" || one.name == "LABEL") return assign(one, escape);
  if (one.name == "CMD" || one.name == "ENTRYPOINT") {
    const std::string member = one.name == "CMD" ? "Cmd" : "Entrypoint";
    std::vector<std::string> words = one.list;
    if (!one.is_list) {
      words = shell;
      words.push_back(one.text);
    }
    run[member] = words;
    if (one.name == "ENTRYPOINT") run.erase("Cmd");
    return {};
  }
  if (one.name == "SHELL") {
    if (!one.is_list || one.list.empty())
      return Error(ErrorKind::invalid, "must be a list").hint("SHELL [\"/bin/bash\", \"-c\"]");
    shell = one.list;
    run["Shell"] = one.list;
    return {};
  }
  if (one.name == "USER" || one.name == "STOPSIGNAL") {
    run[one.name == "USER" ? "User" : "StopSignal"] =
        SPC_TRY(expand(one.text, variables(), escape));
    return {};
  }
  if (one.name == "WORKDIR") {
    const std::string path = SPC_TRY(expand(one.text, variables(), escape));
    workdir = path.starts_with('/')    ? path
              : workdir.ends_with('/') ? workdir + path
                                       : workdir + "/" + path;
    run["WorkingDir"] = workdir;
    return {};
  }
  if (one.name == "EXPOSE" || one.name == "VOLUME") return add_members(one, escape);
  if (one.name == "ONBUILD") {
    if (run.find("OnBuild") == nullptr) run["OnBuild"] = Json::array();
    run["OnBuild"].push_back(one.text);
    return {};
  }
  if (one.name == "HEALTHCHECK") return set_health_check(one, list_in(one.text), run);
  if (one.name == "MAINTAINER") {
    config["author"] = one.text;
    return {};
  }
  return Error(ErrorKind::invalid, "does not change the image's configuration");
}

Result<void> ImageSetup::assign(const Instruction& one, char escape) {
  const Variables known = variables();
  Json& run = run_settings();
  for (const Assignment& pair : SPC_TRY(parse_assignments(one, escape))) {
    const std::string name = SPC_TRY(expand(pair.name, known, escape));
    const std::string value = SPC_TRY(expand(pair.value, known, escape));
    if (one.name == "ENV")
      environment[name] = value;
    else
      run["Labels"][name] = value;
  }
  if (one.name == "LABEL") return {};
  std::vector<std::string> list;
  for (const auto& [name, value] : environment) list.push_back(name + "=" + value);
  run["Env"] = list;
  return {};
}

Result<void> ImageSetup::add_members(const Instruction& one, char escape) {
  const std::string member = one.name == "EXPOSE" ? "ExposedPorts" : "Volumes";
  const auto words = one.is_list ? one.list : SPC_TRY(expand_words(one.text, variables(), escape));
  for (const std::string& word : words) {
    const bool bare = one.name == "EXPOSE" && word.find('/') == std::string::npos;
    run_settings()[member][bare ? word + "/tcp" : word] = Json::object();
  }
  return {};
}

// --- processes ---

Json BuiltStage::to_json() const {
  const auto object_of = [](const Variables& variables) {
    Json object = Json::object();
    for (const auto& [name, value] : variables) object[name] = value;
    return object;
  };
  Json list = Json::array();
  for (const BuiltLayer& layer : layers) {
    list.push_back(Json{
        {"digest", layer.digest.str()}, {"diff_id", layer.diff_id.str()}, {"size", layer.size}});
  }
  return Json{{"config", config},
              {"environment", object_of(environment)},
              {"arguments", object_of(arguments)},
              {"shell", shell},
              {"workdir", workdir},
              {"image", tree.image ? tree.image->digest.str() : ""},
              {"changes", tree.changes},
              {"image_layers", tree.layers},
              {"layers", std::move(list)},
              {"key", key.str()}};
}

Result<BuiltStage> BuiltStage::parse(const Places& places, const Json& text) {
  BuiltStage stage;
  const auto member = [&](std::string_view name) -> const Json& {
    static const Json none;
    const Json* const found = text.find(name);
    return found == nullptr ? none : *found;
  };
  stage.config = member("config");
  for (const Json::Member& one : member("environment").members())
    stage.environment[one.key] = one.value.as_text();
  for (const Json::Member& one : member("arguments").members())
    stage.arguments[one.key] = one.value.as_text();
  stage.shell.clear();
  for (const Json& word : member("shell").elements()) stage.shell.push_back(word.as_text());
  stage.workdir = member("workdir").as_text();
  if (const std::string& digest = member("image").as_text(); !digest.empty()) {
    const auto store = SPC_TRY(open_store(places.store));
    const Digest named = SPC_TRY(Digest::parse(digest));
    stage.tree.image = SPC_TRY(image_of(store.get(), named));
  }
  stage.tree.layers = member("image_layers").as_number();
  for (const Json& one : member("changes").elements()) stage.tree.changes.push_back(one.as_text());
  for (const Json& one : member("layers").elements()) {
    BuiltLayer layer;
    const auto blob = SPC_TRY(one.text("digest"));
    layer.digest = SPC_TRY(Digest::parse(blob.value_or("")));
    const auto content = SPC_TRY(one.text("diff_id"));
    layer.diff_id = SPC_TRY(Digest::parse(content.value_or("")));
    layer.size = SPC_TRY(one.number("size")).value_or(0);
    stage.layers.push_back(layer);
  }
  stage.key = SPC_TRY(Digest::parse(member("key").as_text()));
  return stage;
}

namespace {

/// The jobs of run_side_by_side(). A message is JSON on one line: a job asks {"need": N} and is
/// answered with {"stage": …}; it ends with {"stage": …} or {"error": …}.
class StageJobs {
 public:
  StageJobs(const std::vector<StageJob>& jobs, unsigned most) : jobs_(jobs), most_(most) {}

  Result<std::map<std::size_t, Json>> run() {
    while (done_.size() < jobs_.size()) {
      SPC_TRY(start_more());
      std::vector<pollfd> polled;
      for (const Running& one : running_) {
        polled.push_back({one.socket.get(), POLLIN, 0});
        polled.push_back({one.lines.get(), POLLIN, 0});
      }
      if (::poll(polled.data(), polled.size(), -1) < 0 && errno != EINTR)
        return Error::from_errno(errno, "wait for a stage");
      for (std::size_t i = 0; i < running_.size(); ++i) {
        if (polled[2 * i + 1].revents != 0) show_lines(running_[i]);
        if (polled[2 * i].revents != 0) SPC_TRY(receive(running_[i]));
      }
      std::erase_if(running_, [](const Running& one) { return !one.socket; });
    }
    return std::move(done_);
  }

 private:
  struct Running {
    const StageJob* job;
    Child child;
    UniqueFd socket, lines;
    std::string received, shown;
    std::optional<std::size_t> needs;
  };

  Result<void> start_more() {
    const auto works = [](const Running& one) { return !one.needs; };
    while (next_ < jobs_.size() &&
           (running_.empty() || std::ranges::count_if(running_, works) < most_))
      SPC_TRY(start(jobs_[next_++]));
    return {};
  }

  Result<void> start(const StageJob& job) {
    int ends[2];
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
      return Error::from_errno(errno, "create a socket");
    const UniqueFd theirs(ends[1]);
    Running one{.job = &job, .child = {}, .socket = UniqueFd(ends[0]), .lines = {}};
    auto [reading, writing] = SPC_TRY(make_pipe());
    one.lines = std::move(reading);
    ::fcntl(one.lines.get(), F_SETFL, O_NONBLOCK);
    const int output = writing.get();
    const auto work = [&] {
      for (Running& other : running_) other.socket.reset();
      ::dup2(output, STDERR_FILENO);
      return report(job, theirs.get());
    };
    one.child = SPC_TRY(Child::run(work, "build a stage"));
    running_.push_back(std::move(one));
    return {};
  }

  /// In the process of the job.
  static int report(const StageJob& job, int socket) {
    const auto send = [&](const Json& message) { return write_all(socket, message.str() + "\n"); };
    const auto need = [&](std::size_t number) -> Result<Json> {
      SPC_TRY(send(Json{{"need", number}}));
      std::string answer;
      char c = 0;
      while (::read(socket, &c, 1) == 1 && c != '\n') answer += c;
      return Json::parse(answer);
    };
    const auto done = job.work(need);
    if (done) return send(Json{{"stage", *done}}) ? 0 : 1;
    static_cast<void>(send(Json{{"error", done.error().what()}, {"hint", done.error().advice()}}));
    return 1;
  }

  Result<void> receive(Running& one) {
    std::array<char, 1 << 14> buffer;
    const ssize_t got = ::read(one.socket.get(), buffer.data(), buffer.size());
    if (got < 0 && errno == EINTR) return {};
    if (got > 0) one.received.append(buffer.data(), static_cast<std::size_t>(got));
    const auto end = one.received.find('\n');
    if (got > 0 && end == std::string::npos) return {};
    if (end == std::string::npos)
      return Error(ErrorKind::system, formatted("stage {}: its process has ended", one.job->label));
    Json message = SPC_TRY(Json::parse(std::string_view(one.received).substr(0, end)));
    one.received.erase(0, end + 1);
    if (message.find("need") != nullptr) {
      one.needs = message.find("need")->as_number();
      if (const auto found = done_.find(*one.needs); found != done_.end())
        return answer(one, found->second);
      return {};
    }
    show_lines(one);
    if (!one.shown.empty()) show(one, one.shown);
    if (const Json* const stage = message.find("stage")) return finish(one, *stage);
    return Error(ErrorKind::system, message["error"].as_text()).hint(message["hint"].as_text());
  }

  Result<void> finish(Running& one, const Json& stage) {
    const auto number = one.job->number;
    done_[number] = stage;
    one.child.wait();
    one.socket.reset();
    for (Running& other : running_) {
      if (other.socket && other.needs == number) SPC_TRY(answer(other, stage));
    }
    return {};
  }

  static Result<void> answer(Running& one, const Json& stage) {
    one.needs.reset();
    return write_all(one.socket.get(), stage.str() + "\n");
  }

  static void show(const Running& one, std::string_view line) {
    const std::string text = one.job->label + ": " + std::string(line) + "\n";
    static_cast<void>(write_all(STDERR_FILENO, text));
  }

  static void show_lines(Running& one) {
    std::array<char, 1 << 14> buffer;
    for (;;) {
      const ssize_t got = ::read(one.lines.get(), buffer.data(), buffer.size());
      if (got <= 0) break;
      one.shown.append(buffer.data(), static_cast<std::size_t>(got));
    }
    std::string_view left = one.shown;
    for (auto end = left.find('\n'); end != std::string_view::npos; end = left.find('\n')) {
      show(one, left.substr(0, end));
      left.remove_prefix(end + 1);
    }
    one.shown.erase(0, one.shown.size() - left.size());
  }

  const std::vector<StageJob>& jobs_;
  const unsigned most_;
  std::size_t next_ = 0;
  std::vector<Running> running_;
  std::map<std::size_t, Json> done_;
};

}  // namespace

Result<std::map<std::size_t, Json>> run_side_by_side(const std::vector<StageJob>& jobs,
                                                     unsigned most) {
  return StageJobs(jobs, most).run();
}

// --- image ---

std::string shown(const Instruction& one) {
  std::string text = one.name;
  for (const auto& [name, value] : one.flags)
    text += " --" + name + (value == "true" ? "" : "=" + value);
  text += " " + one.text;
  for (char& c : text) c = c == '\n' || c == '\t' ? ' ' : c;
  constexpr std::size_t kMost = 90;
  return printable(text.size() > kMost ? text.substr(0, kMost - 3) + "..." : text);
}

Result<ListedImage> image_of_file(const Places& places, const Config& config,
                                  const std::string& path) {
  struct stat file {};
  if (::stat(path.c_str(), &file) != 0)
    return Error::from_errno(errno, "open image " + in_quotes(path));
  const std::string identity =
      formatted("{} {} {} {} {}", std::uint64_t{file.st_dev}, std::uint64_t{file.st_ino},
                static_cast<std::int64_t>(file.st_size), std::int64_t{file.st_mtim.tv_sec},
                std::int64_t{file.st_mtim.tv_nsec});
  const std::string name = "localhost/build-base:" + Sha256::of(identity).hex().substr(0, 32);
  const auto directory = SPC_TRY(make_own_store(places));
  auto known = find_image(directory.get(), name, config.default_registry);
  if (known && known->complete && S_ISREG(file.st_mode)) return std::move(*known);
  // Without a name: nothing is left of it if this process is killed.
  const UniqueFd archive(
      ::openat(directory.get(), ".", O_TMPFILE | O_RDWR | O_CLOEXEC, S_IRUSR | S_IWUSR));
  if (!archive) return Error::from_errno(errno, "create a file in the user's image store");
  const auto image = [&]() -> Result<ListedImage> {
    auto source = SPC_TRY(open_archive_source(places, config, path));
    SPC_TRY(write_archive_apart(places, std::move(source), archive.get()));
    PullRequest wanted{.image = formatted("oci-archive:/proc/{}/fd/{}", ::getpid(), archive.get()),
                       .platform = {},
                       .pull = {}};
    wanted.quiet = true;
    return std::move(SPC_TRY(obtain(places, config, wanted)).image);
  }();
  if (!image) return std::move(Error(image.error())).during("open image " + in_quotes(path));
  const auto own_store = SPC_TRY(ImageStore::open(directory.get()));
  SPC_TRY(own_store.write_name({.name = ref_file(name),
                                .manifest = image->digest,
                                .asked_at = static_cast<std::int64_t>(std::time(nullptr))}));
  return *image;
}

namespace {

Result<void> add_base(const ListedImage& image, std::size_t most, Json& layers, Json& diff_ids,
                      Json& annotations) {
  const Json manifest = SPC_TRY(parse_json_object(image.record->manifest, "the base's manifest"));
  const Json* const list = manifest.find("layers");
  if (list == nullptr)
    return Error(ErrorKind::invalid, "the base image is a file without layers")
        .hint("scontainer export writes it as an oci-archive, which can be a base");
  if (most == 0) most = list->size();
  for (const Json& layer : list->elements()) {
    if (layers.size() < most) layers.push_back(layer);
  }
  const auto known = SPC_TRY(parse_image_config(image.record->config, "the base"));
  for (const Digest& one : known.diff_ids) {
    if (diff_ids.size() < most) diff_ids.push_back(one.str());
  }
  const auto origins = image.origins.all();
  const auto origin = std::find_if(origins.begin(), origins.end(),
                                   [](const ImageOrigin& one) { return !one.registry.empty(); });
  if (origin == origins.end()) {
    // Built here: its own base is that of this image.
    const Json* const noted = manifest.find("annotations");
    if (noted == nullptr) return {};
    for (const char* key : {"org.opencontainers.image.base.name",
                            "org.opencontainers.image.base.digest", kLayersOf}) {
      if (const Json* const value = noted->find(key)) annotations[key] = *value;
    }
    return {};
  }
  const std::string digest = image.digest.str();
  annotations["org.opencontainers.image.base.name"] = origin->name;
  annotations["org.opencontainers.image.base.digest"] = digest;
  annotations[kLayersOf] = origin->registry + "/" + origin->repository + "@" + digest;
  return {};
}

}  // namespace

Result<Digest> store_built(const Places& places, const Config& config, const BuildCache& cache,
                           const BuiltStage& built, const std::string& name) {
  Json made = built.config;
  Json diff_ids = Json::array();
  Json layers = Json::array();
  Json annotations = Json::object();
  if (built.tree.image)
    SPC_TRY(add_base(*built.tree.image, built.tree.layers, layers, diff_ids, annotations));
  // Blobs of a base that was built here.
  std::vector<BuiltLayer> blobs = built.layers;
  for (const Json& layer : layers.elements()) {
    const auto digest = Digest::parse(SPC_TRY(layer.text("digest")).value_or(""));
    if (digest && ::access(cache.blob(*digest).c_str(), R_OK) == 0)
      blobs.push_back({.digest = *digest, .diff_id = {}, .size = 0});
  }
  for (const BuiltLayer& layer : built.layers) {
    layers.push_back(Json{{"mediaType", "application/vnd.oci.image.layer.v1.tar+zstd"},
                          {"digest", layer.digest.str()},
                          {"size", layer.size}});
    diff_ids.push_back(layer.diff_id.str());
  }
  made["rootfs"] = Json{{"type", "layers"}, {"diff_ids", std::move(diff_ids)}};
  made.erase("created");
  const std::string config_text = made.str();
  Json manifest{{"schemaVersion", 2},
                {"mediaType", "application/vnd.oci.image.manifest.v1+json"},
                {"layers", std::move(layers)}};
  if (!annotations.empty()) manifest["annotations"] = std::move(annotations);
  manifest["config"] = Json{{"mediaType", "application/vnd.oci.image.config.v1+json"},
                            {"digest", Sha256::of(config_text).str()},
                            {"size", config_text.size()}};
  const std::string manifest_text = manifest.str();
  const std::string layout = SPC_TRY(cache.write_layout(manifest_text, config_text, blobs));
  const Digest digest =
      SPC_TRY(obtain(places, config,
                     {.image = "oci:" + layout, .platform = {}, .pull = {}, .quiet = true}))
          .image.digest;
  if (name.empty()) return digest;
  const auto directory = SPC_TRY(open_store(places.store));
  const auto own_store = SPC_TRY(ImageStore::open(directory.get()));
  SPC_TRY(own_store.write_name({.name = ref_file(name),
                                .manifest = digest,
                                .asked_at = static_cast<std::int64_t>(std::time(nullptr))}));
  return digest;
}

}  // namespace spc::tool
