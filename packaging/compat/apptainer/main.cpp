// Apptainer's command line on top of scontainer, for job scripts that call `apptainer` or
// `singularity`. Each command is translated into scontainer's; nothing is kept here.

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>

#include "base/file.hpp"
#include "base/format.hpp"
#include "base/text.hpp"
#include "packaging/compat/apptainer/apptainer.hpp"
#include "tool/surroundings/places.hpp"

namespace spc::apptainer {

// --- flags ---

namespace {

using tool::become_scontainer;
using tool::output_of_scontainer;
using Use = Flag::Use;

constexpr char kVersion[] = "1.3.6";  // of the Apptainer whose command line this is
constexpr int kFailed = 255;

const Flag* find_flag(std::span<const Flag> flags, std::string_view name) {
  const auto found = std::ranges::find_if(flags, [&](const Flag& flag) {
    return name.size() == 1 ? flag.letter == name[0] : flag.name == name;
  });
  return found == flags.end() ? nullptr : &*found;
}

std::string shown(const Flag& flag) { return std::string("--") + flag.name; }

/// Records one flag. Warns or refuses as its row says.
Result<void> take(const Flag& flag, const std::string& value, Parsed& parsed) {
  if (!flag.takes_value && value != "true" && value != "false" && !value.empty())
    return Error(ErrorKind::invalid, formatted("{}: takes no value", shown(flag)));
  if (flag.use == Use::refused && value != "false")
    return Error(ErrorKind::refused, formatted("{}: {}", shown(flag), flag.note));
  if (flag.use == Use::warning && value != "false")
    warn(formatted("{}: {}", shown(flag), flag.note));
  parsed.values[flag.name].push_back(value);
  return {};
}

Error unknown(std::string_view word) {
  return std::move(Error(ErrorKind::invalid, formatted("unknown flag: {}", printable(word))))
      .hint("apptainer COMMAND --help lists the flags");
}

/// A command line while it is parsed.
struct Cursor {
  std::span<const std::string> words;
  std::size_t at = 0;

  Result<std::string> value_of(const Flag& flag) {
    if (at + 1 >= words.size())
      return Error(ErrorKind::invalid, formatted("flag needs an argument: {}", shown(flag)));
    return words[++at];
  }
};

Result<void> take_long(std::string_view word, std::span<const Flag> flags, Cursor& cursor,
                       Parsed& parsed) {
  const auto equals = word.find('=');
  const std::string_view name =
      word.substr(2, equals == std::string_view::npos ? equals : equals - 2);
  const Flag* flag = name.size() > 1 ? find_flag(flags, name) : nullptr;
  if (flag == nullptr) return unknown(word);
  std::string value;
  if (equals != std::string_view::npos) {
    value = word.substr(equals + 1);
  } else if (flag->takes_value) {
    value = SPC_TRY(cursor.value_of(*flag));
  }
  return take(*flag, value, parsed);
}

Result<void> take_letters(std::string_view word, std::span<const Flag> flags, Cursor& cursor,
                          Parsed& parsed) {
  for (std::size_t i = 1; i < word.size(); ++i) {
    const Flag* flag = find_flag(flags, word.substr(i, 1));
    if (flag == nullptr) return unknown(word);
    if (!flag->takes_value) {
      SPC_TRY(take(*flag, "", parsed));
      continue;
    }
    std::string value(word.substr(i + 1));
    if (value.starts_with('=')) value.erase(0, 1);
    if (i + 1 == word.size()) value = SPC_TRY(cursor.value_of(*flag));
    return take(*flag, value, parsed);
  }
  return {};
}

}  // namespace

std::string Parsed::value(std::string_view name) const {
  const auto found = values.find(name);
  return found == values.end() ? "" : found->second.back();
}

Words Parsed::all(std::string_view name) const {
  const auto found = values.find(name);
  return found == values.end() ? Words() : found->second;
}

Result<Parsed> parse(std::span<const std::string> words, std::span<const Flag> flags, bool mixed) {
  Parsed parsed;
  Cursor cursor{words};
  for (; cursor.at < words.size(); ++cursor.at) {
    const std::string word = words[cursor.at];
    if (word == "--") {
      ++cursor.at;
      break;
    }
    if (word.size() < 2 || word[0] != '-') {
      if (!mixed) break;
      parsed.words.push_back(word);
    } else if (word.starts_with("--")) {
      SPC_TRY(take_long(word, flags, cursor, parsed));
    } else {
      SPC_TRY(take_letters(word, flags, cursor, parsed));
    }
  }
  const auto rest = words.subspan(std::min(cursor.at, words.size()));
  parsed.words.insert(parsed.words.end(), rest.begin(), rest.end());
  return parsed;
}

std::optional<std::string> variable(const std::string& name) {
  for (const char* prefix : {"APPTAINER_", "SINGULARITY_"}) {
    const char* value = std::getenv((prefix + name).c_str());
    if (value != nullptr && *value != '\0') return value;
  }
  return std::nullopt;
}

void warn(const std::string& line) { std::fprintf(stderr, "WARNING: %s\n", line.c_str()); }

// --- images ---

bool is_image_file(const std::string& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) return false;
  if (S_ISDIR(status.st_mode)) return true;
  std::array<char, 64> head{};
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file || ::read(file.get(), head.data(), head.size()) <= 0) return false;
  const std::string_view begin(head.data(), head.size());
  return begin.starts_with("hsqs") || begin.substr(32).starts_with("SIF_MAGIC");
}

Result<std::string> image_of(const std::string& text) {
  struct Form {
    std::string_view prefix;
    const char* ours;  ///< nullptr: refused
    const char* advice = nullptr;
  };
  static constexpr Form kForms[] = {
      {"docker://", "docker://"},
      {"oras://", "oras://"},
      {"https://", "https://"},
      {"http://", "http://"},
      {"docker-daemon://", "dockerd://"},
      {"docker-daemon:", "dockerd://"},
      {"docker-archive://", "docker-archive:"},
      {"docker-archive:", "docker-archive:"},
      {"oci-archive://", "oci-archive:"},
      {"oci-archive:", "oci-archive:"},
      {"oci://", "oci:"},
      {"oci:", "oci:"},
      {"library://", nullptr, "take the image of docker://"},
      {"shub://", nullptr, "Singularity Hub ended in 2021: take the image of docker://"},
  };
  for (const Form& form : kForms) {
    if (!text.starts_with(form.prefix)) continue;
    if (form.ours == nullptr)
      return Error(ErrorKind::refused, formatted("{} is not supported", in_quotes(text)))
          .hint(form.advice);
    return form.ours + text.substr(form.prefix.size());
  }
  std::array<char, PATH_MAX> path{};
  if (::realpath(text.c_str(), path.data()) != nullptr) return std::string(path.data());
  return Error(ErrorKind::not_found,
               formatted("could not open image {}: no such file or directory", in_quotes(text)))
      .hint("for an image of a registry: docker://" + text);
}

std::string file_name_of(const std::string& uri) {
  std::string name = uri.substr(uri.rfind('/') + 1);
  if (uri.starts_with("http")) return name.substr(0, name.find_first_of("?#"));
  std::ranges::replace(name, '@', ':');
  const auto colon = name.find(':');
  std::string tag = colon == std::string::npos ? "latest" : name.substr(colon + 1);
  std::ranges::replace(tag, ':', '.');
  return name.substr(0, colon) + "_" + tag + ".sif";
}

// --- pull and build ---

namespace {

using Given = std::span<const std::string>;

constexpr Flag kPullFlags[] = {
    {0, "arch", true},
    {0, "dir", true},
    {'F', "force", false},
    {0, "name", true},
    {0, "disable-cache", false, Use::nothing},
    {0, "allow-unsigned", false, Use::nothing},
    {'U', "allow-unauthenticated", false, Use::nothing},
    {0, "library", true, Use::nothing},
    {0, "docker-login", false, Use::refused, "(hint: apptainer registry login docker://REGISTRY)"},
    {0, "no-https", false, Use::refused,
     "the site decides this (hint: insecure = true for the registry in config.toml)"},
    {0, "no-cleanup", false, Use::nothing},
};

constexpr Flag kBuildFlags[] = {
    {0, "arch", true},
    {'B', "bind", true, Use::refused, "is not supported (hint: copy what %post needs by %files)"},
    {0, "build-arg", true},
    {0, "build-arg-file", true},
    {0, "disable-cache", false},
    {0, "docker-login", false, Use::refused, "(hint: apptainer registry login docker://REGISTRY)"},
    {'e', "encrypt", false, Use::refused, "encrypted images are not supported"},
    {'f', "fakeroot", false, Use::nothing},
    {0, "fix-perms", false, Use::nothing},
    {'F', "force", false},
    {0, "ignore-fakeroot-command", false, Use::nothing},
    {0, "ignore-subuid", false, Use::nothing},
    {0, "ignore-userns", false, Use::nothing},
    {'j', "json", false, Use::refused, "JSON definitions are not supported"},
    {0, "library", true, Use::nothing},
    {0, "mksquashfs-args", true, Use::nothing},
    {0, "no-cleanup", false, Use::nothing},
    {0, "no-https", false, Use::refused,
     "the site decides this (hint: insecure = true for the registry in config.toml)"},
    {'T', "notest", false},
    {0, "nv", false},
    {0, "nvccli", false},
    {'r', "remote", false, Use::refused, "images are built here, without privilege"},
    {0, "rocm", false},
    {'s', "sandbox", false},
    {0, "section", true, Use::refused, "all sections are built"},
    {'u', "update", false, Use::refused, "a sandbox is built anew (hint: --force)"},
    {0, "userns", false, Use::nothing},
    {0, "writable-tmpfs", false, Use::nothing},
};

Result<void> refuse_existing(const std::string& file, bool force) {
  if (force || ::access(file.c_str(), F_OK) != 0) return {};
  return Error(ErrorKind::refused,
               formatted("Image file already exists: {} - will not overwrite", in_quotes(file)))
      .hint("--force");
}

/// Makes a SIF a program: its first line names run-singularity.
Result<int> make_executable(const std::string& file) {
  struct stat status {};
  if (file.ends_with(".sif") && ::stat(file.c_str(), &status) == 0)
    ::chmod(file.c_str(), (status.st_mode | 0111) & 07777);
  return 0;
}

/// Writes an image, by one of scontainer's names, to a file or, with a / at the end, a directory.
Result<int> write_image(const std::string& image, const std::string& file, const Parsed& parsed) {
  const std::string platform = parsed.value("arch");
  Words pull{"pull"};
  if (!platform.empty()) pull.push_back("--platform=linux/" + platform);
  const bool is_remote_file = image.starts_with("oras://") || image.starts_with("http");
  const bool keeps_file = is_remote_file && file.ends_with(".sif");
  if (keeps_file) {
    pull.push_back("--output=" + file);
    if (parsed.has("force")) pull.emplace_back("--force");
  }
  std::string source = image;
  if (!image.starts_with('/')) {
    pull.insert(pull.end(), {"--", image});
    source = SPC_TRY(output_of_scontainer(pull));
    if (keeps_file) return make_executable(file);
  }
  Words write{"export"};
  if (parsed.has("force")) write.emplace_back("--force");
  write.insert(write.end(), {"--", source, file});
  SPC_TRY(output_of_scontainer(write));
  return make_executable(file);
}

Result<int> run_pull(Given given) {
  const auto parsed = SPC_TRY(parse(given, kPullFlags, true));
  if (parsed.words.empty() || parsed.words.size() > 2)
    return Error(ErrorKind::invalid, "pull [FLAGS] [FILE] URI");
  const std::string& uri = parsed.words.back();
  const std::string image = SPC_TRY(image_of(uri));
  std::string file = parsed.words.size() == 2 ? parsed.words.front() : parsed.value("name");
  if (file.empty()) {
    file = file_name_of(uri);
    std::string directory = parsed.value("dir");
    if (directory.empty()) directory = variable("PULLDIR").value_or("");
    if (!directory.empty()) file = directory + "/" + file;
  }
  SPC_TRY(refuse_existing(file, parsed.has("force")));
  return write_image(image, absolute(file), parsed);
}

Result<int> run_build(Given given) {
  const auto parsed = SPC_TRY(parse(given, kBuildFlags, true));
  if (parsed.words.size() != 2) return Error(ErrorKind::invalid, "build [FLAGS] TARGET SOURCE");
  std::string target = absolute(parsed.words[0]);
  const std::string& source = parsed.words[1];
  const bool force = parsed.has("force");
  if (parsed.has("sandbox")) {
    if (!target.ends_with('/')) target += '/';
  } else if (!target.ends_with(".sqsh") && !target.ends_with(".sif")) {
    return Error(ErrorKind::invalid,
                 formatted("build {}: a target ends in .sif or .sqsh", in_quotes(parsed.words[0])))
        .hint("--sandbox for a directory");
  }
  SPC_TRY(refuse_existing(target, force));
  std::error_code ignored;
  if (force && parsed.has("sandbox")) std::filesystem::remove_all(target, ignored);
  const bool is_recipe =
      source == "-" || (::access(source.c_str(), F_OK) == 0 && !is_image_file(source));
  if (!is_recipe) {
    const std::string image = SPC_TRY(image_of(source));
    return write_image(image, target, parsed);
  }
  Words build{"build", "--output=" + target};
  if (force) build.emplace_back("--force");
  if (parsed.has("disable-cache")) build.emplace_back("--no-cache");
  if (parsed.has("notest")) build.emplace_back("--notest");
  if (parsed.has("nv") || parsed.has("nvccli") || parsed.has("rocm")) build.emplace_back("--gpu");
  for (const std::string& text : parsed.all("build-arg")) build.push_back("--build-arg=" + text);
  for (const std::string& file : parsed.all("build-arg-file"))
    build.push_back("--build-arg-file=" + file);
  if (const std::string arch = parsed.value("arch"); !arch.empty())
    build.push_back("--platform=linux/" + arch);
  build.push_back(source);
  SPC_TRY(output_of_scontainer(build));
  return make_executable(target);
}

// --- start ---

Result<int> start(Action action, Given given) {
  const auto parsed = SPC_TRY(parse(given, start_flags()));
  return become_scontainer(SPC_TRY(start_arguments(action, parsed)));
}

Result<int> run_exec(Given given) { return start(Action::exec, given); }
Result<int> run_run(Given given) { return start(Action::run, given); }
Result<int> run_shell(Given given) { return start(Action::shell, given); }
Result<int> run_test(Given given) { return start(Action::test, given); }

/// `instance start [FLAGS] IMAGE NAME [ARGUMENT...]`, list, stop and stats.
Result<int> run_instance(Given given) {
  if (given.empty())
    return Error(ErrorKind::invalid, "instance start [FLAGS] IMAGE NAME | list | stop NAME");
  const std::string& what = given[0];
  const auto rest = given.subspan(1);
  if (what == "list") return become_scontainer({"containers"});
  if (what == "stats")
    return Error(ErrorKind::refused, "instance stats: is not supported")
        .hint("top; in a job sstat -j JOB shows its use");
  if (what == "stop") {
    Words stop{"stop"};
    for (const std::string& word : rest) {
      if (!word.starts_with('-')) stop.push_back(word);
    }
    return become_scontainer(stop);
  }
  if (what != "start" && what != "run")
    return Error(ErrorKind::invalid, formatted("instance: unknown command {}", in_quotes(what)));
  auto parsed = SPC_TRY(parse(rest, start_flags()));
  if (parsed.words.size() < 2)
    return Error(ErrorKind::invalid, "instance start [FLAGS] IMAGE NAME [ARGUMENT...]");
  const std::string name = parsed.words[1];
  parsed.words.erase(parsed.words.begin() + 1);
  auto arguments = SPC_TRY(start_arguments(Action::instance, parsed));
  arguments.insert(arguments.begin() + 1, {"--detach", "--name=" + name});
  return become_scontainer(arguments);
}

// --- inspect ---

constexpr Flag kInspectFlags[] = {
    {'d', "deffile", false},
    {'e', "environment", false},
    {'H', "helpfile", false},
    {'j', "json", false},
    {'l', "labels", false},
    {'r', "runscript", false},
    {'s', "startscript", false},
    {'t', "test", false},
    {0, "all", false},
    {0, "app", true, Use::refused, "SCIF apps are not supported"},
    {0, "list-apps", false, Use::refused, "SCIF apps are not supported"},
};

/// Prints a file of the image, or of images of registries what scontainer knows.
Result<int> run_inspect(Given given) {
  const auto parsed = SPC_TRY(parse(given, kInspectFlags, true));
  if (parsed.words.size() != 1) return Error(ErrorKind::invalid, "inspect [FLAGS] IMAGE");
  const std::string image = SPC_TRY(image_of(parsed.words[0]));
  const std::pair<const char*, const char*> files[] = {
      {"deffile", "Singularity"}, {"environment", "env/*.sh"}, {"helpfile", "runscript.help"},
      {"labels", "labels.json"},  {"runscript", "runscript"},  {"startscript", "startscript"},
      {"test", "test"},
  };
  for (const auto& [flag, file] : files) {
    if (!parsed.has(flag)) continue;
    const std::string path = std::string("/.singularity.d/") + file;
    return become_scontainer({"run", "--quiet", "--readonly", "--no-gpu", image, "/bin/sh", "-c",
                              formatted("cat {} 2>/dev/null || {{ echo 'the image has no {}' >&2; "
                                        "exit 255; }}",
                                        path, flag)});
  }
  Words inspect{"inspect"};
  if (parsed.has("json")) inspect.emplace_back("--json");
  inspect.push_back(image);
  return become_scontainer(inspect);
}

// --- registries, cache and the rest ---

constexpr Flag kLoginFlags[] = {
    {'u', "username", true}, {'p', "password", true}, {0, "password-stdin", false}};

Result<int> run_registry(Given given) {
  if (given.empty()) return Error(ErrorKind::invalid, "registry login|logout|list [docker://HOST]");
  const auto parsed = SPC_TRY(parse(given.subspan(1), kLoginFlags, true));
  std::string host = parsed.words.empty() ? "" : parsed.words[0];
  for (const std::string_view scheme : {"docker://", "oras://", "https://"}) {
    if (host.starts_with(scheme)) host.erase(0, scheme.size());
  }
  while (host.ends_with('/')) host.pop_back();
  if (given[0] == "list") return become_scontainer({"login", "--help"});
  Words words{given[0] == "logout" ? "logout" : "login"};
  if (given[0] != "login" && given[0] != "logout")
    return Error(ErrorKind::invalid,
                 formatted("registry: unknown command {}", in_quotes(given[0])));
  if (parsed.has("password")) {
    return Error(ErrorKind::refused, "--password: other users see it in the list of processes")
        .hint("--password-stdin");
  }
  if (parsed.has("username")) words.push_back("--username=" + parsed.value("username"));
  if (parsed.has("password-stdin")) words.emplace_back("--password-stdin");
  if (!host.empty()) words.push_back(host);
  return become_scontainer(words);
}

Result<int> run_cache(Given given) {
  if (!given.empty() && given[0] == "list") return become_scontainer({"images"});
  if (!given.empty() && given[0] == "clean") return become_scontainer({"gc", "--yes"});
  return Error(ErrorKind::invalid, "cache list|clean");
}

constexpr Flag kPushFlags[] = {{'U', "allow-unsigned", false, Use::nothing},
                               {'D', "description", true, Use::nothing},
                               {0, "library", true, Use::nothing}};

Result<int> run_push(Given given) {
  const auto parsed = SPC_TRY(parse(given, kPushFlags, true));
  if (parsed.words.size() != 2) return Error(ErrorKind::invalid, "push IMAGE oras://NAME");
  const std::string image = SPC_TRY(image_of(parsed.words[0]));
  std::string name = parsed.words[1];
  if (name.starts_with("library://"))
    return Error(ErrorKind::refused, "library:// is not supported").hint("push IMAGE oras://NAME");
  for (const std::string_view scheme : {"docker://", "oras://"}) {
    if (name.starts_with(scheme)) name.erase(0, scheme.size());
  }
  return become_scontainer({"push", image, name});
}

constexpr Flag kOverlayFlags[] = {{'s', "size", true, Use::nothing},
                                  {'S', "sparse", false, Use::nothing},
                                  {0, "fakeroot", false, Use::nothing},
                                  {0, "create-dir", true, Use::nothing}};

/// `overlay create DIR`: overlays are directories, which grow as needed.
Result<int> run_overlay(Given given) {
  if (given.empty() || given[0] != "create") return Error(ErrorKind::invalid, "overlay create DIR");
  const auto parsed = SPC_TRY(parse(given.subspan(1), kOverlayFlags, true));
  if (parsed.words.size() != 1) return Error(ErrorKind::invalid, "overlay create DIR");
  const std::string& directory = parsed.words[0];
  if (::mkdir(directory.c_str(), 0755) != 0)
    return Error::from_errno(errno, "make directory " + in_quotes(directory));
  return 0;
}

Result<int> run_version(Given /*given*/) {
  std::printf("%s-spank-container-%s\n", kVersion, SPC_VERSION);
  return 0;
}

struct Command {
  const char* name;
  const char* usage;
  Result<int> (*run)(Given);
  const char* advice = nullptr;  ///< of commands that are not here
};

constexpr Command kCommands[] = {
    {"build", "[FLAGS] TARGET SOURCE", run_build},
    {"cache", "list|clean", run_cache},
    {"exec", "[FLAGS] IMAGE COMMAND [ARGUMENT...]", run_exec},
    {"inspect", "[FLAGS] IMAGE", run_inspect},
    {"instance", "start|list|stop ...", run_instance},
    {"overlay", "create DIR", run_overlay},
    {"pull", "[FLAGS] [FILE] URI", run_pull},
    {"push", "IMAGE oras://NAME", run_push},
    {"registry", "login|logout docker://HOST", run_registry},
    {"run", "[FLAGS] IMAGE [ARGUMENT...]", run_run},
    {"shell", "[FLAGS] IMAGE", run_shell},
    {"test", "[FLAGS] IMAGE", run_test},
    {"version", "", run_version},
    {"capability", "", nullptr, "containers have no capabilities of the host"},
    {"checkpoint", "", nullptr, "not supported; DMTCP works inside containers"},
    {"config", "", nullptr, "the site's configuration is /etc/spank-container/config.toml"},
    {"delete", "", nullptr, "library:// is not supported"},
    {"key", "", nullptr,
     "images are verified by the site's policy.json, see spank-container-signatures(7)"},
    {"keyserver", "", nullptr,
     "images are verified by the site's policy.json, see spank-container-signatures(7)"},
    {"oci", "", nullptr, "scontainer run starts OCI images"},
    {"plugin", "", nullptr, "spank-container-hooks(7) extend containers"},
    {"remote", "", nullptr, "library:// is not supported; apptainer registry login docker://HOST"},
    {"search", "", nullptr,
     "library:// is not supported; scontainer catalogue lists the site's images"},
    {"sif", "", nullptr,
     "scontainer inspect FILE.sif shows the image; scontainer export writes SIF files"},
    {"sign", "", nullptr,
     "images are verified by the site's policy.json, see spank-container-signatures(7)"},
    {"verify", "", nullptr,
     "signatures of SIF files are not checked; those of registry images are, by the site's "
     "policy.json"},
};

std::string help() {
  std::string text =
      "Usage: apptainer [GLOBAL FLAGS] COMMAND ...\n\n"
      "Apptainer's command line, on top of scontainer(1).\n\nCommands:\n";
  for (const Command& command : kCommands) {
    if (command.run != nullptr) text += formatted("  {} {}\n", command.name, command.usage);
  }
  return text + "\nSee apptainer(1).\n";
}

std::string help_of(const Command& command) {
  std::string text = formatted("Usage: apptainer {} {}\n", command.name, command.usage);
  std::span<const Flag> flags;
  const std::string_view name = command.name;
  if (name == "exec" || name == "run" || name == "shell" || name == "test") flags = start_flags();
  if (name == "build") flags = kBuildFlags;
  if (name == "pull") flags = kPullFlags;
  if (name == "inspect") flags = kInspectFlags;
  if (!flags.empty()) text += "\nFlags:\n";
  for (const Flag& flag : flags) {
    const std::string letter =
        flag.letter != 0 ? formatted("-{}, ", std::string(1, flag.letter)) : "    ";
    std::string note;
    if (flag.use == Use::nothing) note = "  (has no effect)";
    if (flag.note != nullptr) note = formatted("  ({})", flag.note);
    text += formatted("  {}--{}{}{}\n", letter, flag.name, flag.takes_value ? " VALUE" : "", note);
  }
  return text;
}

constexpr Flag kGlobalFlags[] = {
    {'d', "debug", false, Use::nothing},
    {'q', "quiet", false, Use::nothing},
    {'s', "silent", false, Use::nothing},
    {'v', "verbose", false, Use::nothing},
    {0, "nocolor", false, Use::nothing},
    {'c', "config", true, Use::nothing},
    {'h', "help", false},
    {0, "version", false},
    {0, "build-config", false, Use::nothing},
};

Result<int> run(Given words) {
  const auto global = SPC_TRY(parse(words, kGlobalFlags));
  if (global.has("version")) {
    std::printf("apptainer version %s-spank-container-%s\n", kVersion, SPC_VERSION);
    return 0;
  }
  Given rest(global.words);
  const bool wants_help = global.has("help") || rest.empty() || rest[0] == "help";
  if (!rest.empty() && rest[0] == "help") rest = rest.subspan(1);
  if (rest.empty() && wants_help) {
    std::fputs(help().c_str(), words.empty() ? stderr : stdout);
    return words.empty() ? 1 : 0;
  }
  const auto found = std::ranges::find_if(
      kCommands, [&](const Command& command) { return rest[0] == command.name; });
  if (found == std::end(kCommands)) {
    return Error(ErrorKind::invalid,
                 formatted("unknown command {} for \"apptainer\"", in_quotes(rest[0])))
        .hint("apptainer help");
  }
  const bool is_asked = rest.size() > 1 && (rest[1] == "--help" || rest[1] == "-h");
  if (wants_help || is_asked) {
    std::fputs(help_of(*found).c_str(), stdout);
    return 0;
  }
  if (found->run == nullptr)
    return Error(ErrorKind::refused, formatted("{}: {}", found->name, found->advice));
  return found->run(rest.subspan(1));
}

}  // namespace

}  // namespace spc::apptainer

// --- main ---

int main(int argc, char** argv) {
  try {
    std::vector<std::string> words(argv + 1, argv + argc);
    // Executed as FILE.sif: the file's first line is `#!/usr/bin/env run-singularity`.
    if (argc > 0 && std::string_view(argv[0]).ends_with("run-singularity"))
      words.insert(words.begin(), "run");
    const auto done = spc::apptainer::run(words);
    if (done) return *done;
    // scontainer has reported an error without a message
    if (!done.error().message().empty())
      std::fprintf(stderr, "FATAL:   %s\n", done.error().message().c_str());
  } catch (const std::exception& error) {  // out of memory
    std::fprintf(stderr, "FATAL:   %s\n", error.what());
  }
  return spc::apptainer::kFailed;
}
