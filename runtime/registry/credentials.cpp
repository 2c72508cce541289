#include "registry/credentials.hpp"

#include <fcntl.h>
#include <pwd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdlib>
#include <memory>
#include <vector>

#include "base/file.hpp"
#include "base/format.hpp"
#include "base/hash.hpp"
#include "base/process/supervised.hpp"
#include "base/socket.hpp"
#include "base/text.hpp"
#include "registry/manifest.hpp"

namespace spc {

// --- credential files ---

namespace {

constexpr std::size_t kMaxFile = 1 << 20;

/// Returns an environment variable, empty if it is not set.
std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

std::string home_of_user() {
  if (std::string home = variable("HOME"); !home.empty()) return home;
  const passwd* entry = ::getpwuid(::getuid());
  return entry != nullptr && entry->pw_dir != nullptr ? entry->pw_dir : "/nonexistent";
}

}  // namespace

CredentialPlaces CredentialPlaces::of_user() {
  const std::string home = home_of_user();
  const auto or_else = [](std::string value, const std::string& otherwise) {
    return value.empty() ? otherwise : value;
  };
  const std::string settings = or_else(variable("XDG_CONFIG_HOME"), home + "/.config");
  const std::string run = or_else(variable("XDG_RUNTIME_DIR"), "");

  CredentialPlaces places;
  places.named_file = variable("REGISTRY_AUTH_FILE");
  places.docker_file = or_else(variable("DOCKER_CONFIG"), home + "/.docker") + "/config.json";
  places.enroot_file =
      or_else(variable("ENROOT_CONFIG_PATH"), settings + "/enroot") + "/.credentials";
  const auto add = [&](const std::string& path) {
    const bool known = std::find(places.json_files.begin(), places.json_files.end(), path) !=
                       places.json_files.end();
    if (!path.empty() && !known) places.json_files.push_back(path);
  };
  add(places.named_file);
  add((run.empty() ? "/run/containers/" + std::to_string(::getuid()) : run + "/containers") +
      "/auth.json");
  add(settings + "/containers/auth.json");
  add(places.docker_file);
  return places;
}

Result<std::optional<SecretText>> read_credential_file(const std::string& path, Log& log) {
  const std::string step = "read credentials " + in_quotes(path);
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK));
  if (!file) {
    if (errno == ENOENT || errno == ENOTDIR) return std::optional<SecretText>();
    return Error::from_errno(errno, step);
  }
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) return Error::from_errno(errno, step);
  if (!S_ISREG(status.st_mode)) return Error(ErrorKind::refused, step + ": it is not a file");
  if (status.st_size > static_cast<off_t>(kMaxFile))
    return Error(ErrorKind::refused, step + ": it is larger than 1 MiB");
  if ((status.st_mode & S_IROTH) != 0) {
    log.write(LogLevel::warning,
              formatted("everyone can read the credentials in {}: chmod 600 it", in_quotes(path)));
  }
  return std::optional(SecretText(SPC_TRY_DURING(step, read_file(file.get(), kMaxFile))));
}

std::size_t fit_of(std::string_view key, const ImageReference& image) {
  bool is_url = false;
  for (const std::string_view scheme : {"https://", "http://"}) {
    if (!key.starts_with(scheme)) continue;
    key.remove_prefix(scheme.size());
    is_url = true;
  }
  const std::size_t slash = key.find('/');
  const auto host = parse_registry(key.substr(0, slash));
  if (!host || *host != image.registry) return 0;
  if (slash == std::string_view::npos || is_url) return 1;
  const std::string_view path = key.substr(slash + 1);
  const bool whole =
      image.repository.size() == path.size() ||
      (image.repository.size() > path.size() && image.repository[path.size()] == '/');
  return !path.empty() && whole && image.repository.starts_with(path) ? 1 + path.size() : 0;
}

// --- JSON credential files ---

namespace {

/// Returns an object in the file, empty if it is missing.
Result<const Json*> table(const Json& file, const char* key) {
  static const Json kNone = Json::object();
  const Json* found = file.find(key);
  if (found == nullptr) return &kNone;
  if (!found->is_object()) return Error(ErrorKind::invalid, in_quotes(key) + " is not an object");
  return found;
}

Result<std::string> text_or_empty(const Json& object, const char* key) {
  auto text = SPC_TRY(object.text(key));
  return text ? *std::move(text) : std::string();
}

/// Parses an entry of `auths`. Returns an empty optional for an empty entry, which docker writes if
/// a helper has the secret.
Result<std::optional<RegistrySecret>> secret_of_entry(const Json* found) {
  if (found == nullptr || !found->is_object()) return Error(ErrorKind::invalid, "is not an object");
  const Json& entry = *found;
  RegistrySecret secret;
  secret.username = SPC_TRY(text_or_empty(entry, "username"));
  secret.password = SecretText(SPC_TRY(text_or_empty(entry, "password")));
  secret.identity_token = SecretText(SPC_TRY(text_or_empty(entry, "identitytoken")));
  secret.registry_token = SecretText(SPC_TRY(text_or_empty(entry, "registrytoken")));
  if (const SecretText auth(SPC_TRY(text_or_empty(entry, "auth"))); !auth.empty()) {
    auto decoded = from_base64(auth.text());
    const SecretText pair(decoded ? *std::move(decoded) : std::string());
    const std::size_t colon = pair.text().find(':');
    if (colon == std::string::npos)
      return Error(ErrorKind::invalid, "\"auth\" is not USER:PASSWORD in base64");
    const std::string_view password = std::string_view(pair.text()).substr(colon + 1);
    secret.username = pair.text().substr(0, colon);
    secret.password = SecretText(std::string(password.substr(0, password.find('\0'))));
  }
  if (secret.empty()) return std::optional<RegistrySecret>();
  return std::optional(std::move(secret));
}

bool is_of(const RegistrySecret& secret, const std::string& user) {
  return user.empty() || secret.username == user;
}

/// Returns the keys that match the image, best match first.
std::vector<std::string> fitting(const Json& entries, const ImageReference& image) {
  std::vector<std::pair<std::size_t, std::string>> found;
  for (const auto& [key, value] : entries.members()) {
    if (const std::size_t fit = fit_of(key, image); fit > 0) found.emplace_back(fit, key);
  }
  std::sort(found.begin(), found.end(), [](const auto& a, const auto& b) {
    return a.first != b.first ? a.first > b.first : a.second < b.second;
  });
  std::vector<std::string> names;
  for (auto& [fit, name] : found) names.push_back(std::move(name));
  return names;
}

Result<std::string> checked_helper(const std::string& name) {
  const auto allowed = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_' || c == '.';
  };
  if (!name.empty() && std::all_of(name.begin(), name.end(), allowed)) return name;
  return Error(ErrorKind::invalid, in_quotes(name) + " is not the name of a credential helper");
}

Result<std::string> named_helper(const Json& file, const ImageReference& image) {
  const auto* helpers = SPC_TRY(table(file, "credHelpers"));
  for (const auto& name : fitting(*helpers, image)) {
    const Json* helper = helpers->find(name);
    if (helper == nullptr || !helper->is_text())
      return Error(ErrorKind::invalid, "\"credHelpers\": a helper is not a string");
    if (!helper->as_text().empty()) return checked_helper(helper->as_text());
  }
  return std::string();
}

}  // namespace

std::string docker_name_of(const std::string& registry) {
  return registry == "docker.io" ? "https://index.docker.io/v1/" : registry;
}

Result<std::optional<RegistrySecret>> ask_helper(const std::string& helper,
                                                 const std::string& registry) {
  const std::string program = "docker-credential-" + helper;
  const std::string step =
      formatted("query credential helper {} about {}", in_quotes(program), in_quotes(registry));
  const auto output =
      SPC_TRY_DURING(step, run_command({program, "get"}, docker_name_of(registry) + "\n"));
  const std::string& text = output.out.text();
  if (output.status != 0) {
    // docker's helpers report this on standard output.
    if (text.find("credentials not found") != std::string::npos)
      return std::optional<RegistrySecret>();
    return Error(ErrorKind::unavailable, formatted("{}: {}", step, output.ending()));
  }
  const Json answer = SPC_TRY_DURING(step, parse_json_object(text, "its answer"));
  RegistrySecret secret;
  secret.username = SPC_TRY_DURING(step, text_or_empty(answer, "Username"));
  SecretText shared(SPC_TRY_DURING(step, text_or_empty(answer, "Secret")));
  if (shared.empty()) return Error(ErrorKind::invalid, step + ": its response has no secret");
  (secret.username == "<token>" ? secret.identity_token : secret.password) = std::move(shared);
  secret.source = program;
  return std::optional(std::move(secret));
}

Result<std::string> helper_for(const Json& file, const std::string& path,
                               const ImageReference& image) {
  const std::string step = "credentials " + in_quotes(path);
  if (auto helper = SPC_TRY_DURING(step, named_helper(file, image)); !helper.empty()) return helper;
  const std::string store = SPC_TRY_DURING(step, text_or_empty(file, "credsStore"));
  if (store.empty()) return store;
  return SPC_TRY_DURING(step, checked_helper(store));
}

Result<std::optional<RegistrySecret>> secret_in_json(const Json& file, const std::string& path,
                                                     const ImageReference& image,
                                                     const std::string& user) {
  const std::string step = "credentials " + in_quotes(path);
  const auto asked = [&](const std::string& helper) -> Result<std::optional<RegistrySecret>> {
    auto secret = SPC_TRY_DURING(step, ask_helper(helper, image.registry));
    if (secret && !is_of(*secret, user)) secret.reset();
    return secret;
  };
  const std::string helper = SPC_TRY_DURING(step, named_helper(file, image));
  if (!helper.empty()) return asked(helper);

  const auto* entries = SPC_TRY_DURING(step, table(file, "auths"));
  bool listed = false;
  for (const auto& name : fitting(*entries, image)) {
    auto secret = SPC_TRY_DURING(formatted("{}: entry {}", step, in_quotes(name)),
                                 secret_of_entry(entries->find(name)));
    listed = true;
    if (!secret || !is_of(*secret, user)) continue;
    secret->source = path;
    return secret;
  }
  const std::string store = SPC_TRY(helper_for(file, path, image));
  if (store.empty()) return std::optional<RegistrySecret>();
  auto secret = asked(store);
  // A missing helper for all registries is an error only if `auths` lists the registry.
  if (!secret && secret.error().kind() == ErrorKind::not_found && !listed)
    return std::optional<RegistrySecret>();
  return secret;
}

// --- credential commands ---

namespace {

constexpr std::size_t kMaxOutput = 64 << 10;
constexpr std::size_t kMaxComplaints = 200;

std::string complaints_of(std::string text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.pop_back();
  if (text.size() > kMaxComplaints) text.erase(0, text.size() - kMaxComplaints);
  for (char& c : text) {
    if (c == '\n') c = ' ';
  }
  return printable(text);
}

}  // namespace

Result<CommandOutput> run_command(const std::vector<std::string>& command, std::string_view input,
                                  std::chrono::seconds limit) {
  const char* path = std::getenv("PATH");
  auto found = find_program(command.front(), path != nullptr ? path : "/usr/bin:/bin");
  if (!found)
    return std::move(found).error().hint(
        "install it on this node, or add its directory to the job's PATH");
  const std::string what = "run " + in_quotes(*found);
  std::string errors;
  const auto complain = [&](std::string_view line) {
    errors.append(line).push_back('\n');
    if (errors.size() > 2 * kMaxComplaints) errors.erase(0, errors.size() - kMaxComplaints - 1);
  };
  // Background processes left by the program, such as an agent, are not killed.
  auto ran = run_supervised(
      {.path = *found,
       .arguments = command,
       .descriptors = {},
       .signals = Program::Signals::defaults},
      input,
      {.time = limit, .output = kMaxOutput, .lines = INT_MAX - 1, .group = RunLimits::Group::left},
      complain);
  if (!ran) return Error::from_errno(ran.error().sys_errno(), what);
  CommandOutput result;
  result.out = SecretText(std::move(ran->output));
  switch (ran->kind) {
    case ProcessEnd::Kind::exited: result.status = ran->number; break;
    case ProcessEnd::Kind::signalled: result.status = 128 + ran->number; break;
    case ProcessEnd::Kind::timed_out:
      return Error(ErrorKind::unavailable,
                   formatted("{}: did not finish within {} s", what, limit.count()));
    case ProcessEnd::Kind::printed_too_much:
      return Error(ErrorKind::unavailable, what + ": wrote more than 64 KiB");
  }
  result.complaints = complaints_of(std::move(errors));
  return result;
}

std::string CommandOutput::ending() const {
  if (complaints.empty()) return formatted("exited with status {}", status);
  return formatted("exited with status {} (it says: {})", status, complaints);
}

// --- enroot credentials ---

namespace {

constexpr std::string_view kBlanks = " \t\r";

/// Consumes and returns the first word.
std::string_view take_word(std::string_view& rest) {
  rest = trimmed(rest);
  const std::string_view word = rest.substr(0, rest.find_first_of(kBlanks));
  rest.remove_prefix(word.size());
  return word;
}

bool is_name(std::string_view text) {
  return !text.empty() && (text[0] < '0' || text[0] > '9') &&
         text.find_first_not_of(
             "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_") ==
             std::string_view::npos;
}

/// Splits a command whose words a shell would not change. Returns an empty list for any other
/// command.
std::vector<std::string> plain_words(std::string_view command) {
  constexpr std::string_view kPlain =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_./:@%+,=";
  std::vector<std::string> words;
  while (!trimmed(command).empty()) {
    const std::string_view word = take_word(command);
    if (word.find_first_not_of(kPlain) != std::string_view::npos) return {};
    words.emplace_back(word);
  }
  // `NAME=value program` sets a variable.
  if (!words.empty() && words[0].find('=') != std::string::npos) return {};
  return words;
}

Result<SecretText> output_of(const std::vector<std::string>& command) {
  const auto output = SPC_TRY(run_command(command, ""));
  if (output.status != 0) {
    return Error(ErrorKind::unavailable,
                 formatted("run {}: {}", in_quotes(command[0]), output.ending()));
  }
  std::string_view text = output.out.text();
  while (text.ends_with('\n')) text.remove_suffix(1);
  return SecretText(std::string(text));
}

Result<SecretText> expanded(std::string_view text, bool may_run) {
  if (!text.starts_with('$')) return SecretText(std::string(take_word(text)));
  std::string_view name = text.substr(1);
  if (name.starts_with('{') && name.ends_with('}')) name = name.substr(1, name.size() - 2);
  if (is_name(name)) {
    const char* value = std::getenv(std::string(name).c_str());
    if (value == nullptr)
      return Error(ErrorKind::not_found, formatted("the variable {} is not set", in_quotes(name)));
    return SecretText(value);
  }
  if (!may_run) {
    return std::move(Error(ErrorKind::refused,
                           "its password is a command, but other users can write the file"))
        .hint("chmod 600 it, or log in: scontainer login");
  }
  if (text.starts_with("$(") && text.ends_with(')')) {
    if (const auto words = plain_words(text.substr(2, text.size() - 3)); !words.empty())
      return output_of(words);
  }
  return output_of({"/bin/sh", "-c", "printf %s \"" + std::string(text) + "\""});
}

bool fits(std::string_view machine, const ImageReference& image) {
  const std::string_view registry = image.registry;
  if (machine == registry) return true;
  const auto known = parse_registry(machine);
  if (known && *known == image.registry) return true;
  if (image.registry == "docker.io") return machine == "auth.docker.io";
  // enroot omits the port. An IPv6 address ends with a bracket.
  const std::size_t colon = registry.rfind(':');
  const bool has_port =
      colon != std::string_view::npos && registry.find(']', colon) == std::string_view::npos;
  return has_port && machine == registry.substr(0, colon);
}

}  // namespace

Result<std::optional<RegistrySecret>> secret_in_enroot(std::string_view text,
                                                       const std::string& path,
                                                       const ImageReference& image,
                                                       const std::string& user, bool may_run) {
  for (std::size_t number = 1; !text.empty(); ++number) {
    std::string_view line = next_part(text, '\n');
    if (take_word(line) != "machine") continue;
    const std::string_view machine = take_word(line);
    if (!fits(machine, image)) continue;
    const std::string step = formatted("credentials {}, line {}", in_quotes(path), number);
    if (take_word(line) != "login")
      return Error(ErrorKind::invalid,
                   step + ": expected machine HOST login USER password PASSWORD");
    const std::string_view login = take_word(line);
    if (take_word(line) != "password")
      return Error(ErrorKind::invalid,
                   step + ": expected machine HOST login USER password PASSWORD");
    if (!user.empty() && login != user) continue;
    RegistrySecret secret;
    secret.username = login;
    secret.password = SPC_TRY_DURING(step, expanded(trimmed(line), may_run));
    secret.source = path;
    if (secret.password.empty()) return Error(ErrorKind::invalid, step + ": the password is empty");
    return std::optional(std::move(secret));
  }
  return std::optional<RegistrySecret>();
}

// --- credential storage ---

namespace {

Result<ImageReference> whole_registry(const std::string& registry) {
  ImageReference image;
  image.registry = SPC_TRY(parse_registry(registry));
  return image;
}

struct AuthFile {
  std::string path;
  Json json = Json::object();
  bool exists = false;
};

Result<AuthFile> read_auth_file(const std::string& path, Log& log) {
  AuthFile file{.path = path};
  const auto text = SPC_TRY(read_credential_file(path, log));
  file.exists = text.has_value();
  if (!text || text->empty()) return file;
  file.json = SPC_TRY(parse_json_object(text->text(), "credentials " + in_quotes(path)));
  for (const char* table : {"auths", "credHelpers"}) {
    if (const Json* found = file.json.find(table); found != nullptr && !found->is_object()) {
      return Error(ErrorKind::invalid, formatted("credentials {}: {} is not an object",
                                                 in_quotes(path), in_quotes(table)));
    }
  }
  return file;
}

/// Returns the entries for the whole registry, without those for a part of it.
std::vector<std::string> entries_for(const AuthFile& file, const ImageReference& registry) {
  std::vector<std::string> names;
  const Json* entries = file.json.find("auths");
  if (entries == nullptr) return names;
  for (const auto& [name, entry] : entries->members()) {
    if (fit_of(name, registry) > 0) names.push_back(name);
  }
  return names;
}

Result<std::string> helper_of(const AuthFile& file, const ImageReference& registry) {
  return helper_for(file.json, file.path, registry);
}

/// Writes a new file beside the old one (or beside the target, if that is a link) and renames it.
Result<void> replace_file(const std::string& path, const std::string& text) {
  const std::string step = "write credentials " + in_quotes(path);
  std::string target = path;
  if (const std::unique_ptr<char, decltype(&std::free)> real(::realpath(path.c_str(), nullptr),
                                                             &std::free);
      real) {
    target = real.get();
  }
  const std::string directory = target.substr(0, target.rfind('/'));
  for (std::size_t slash = directory.find('/', 1);; slash = directory.find('/', slash + 1)) {
    if (::mkdir(directory.substr(0, slash).c_str(), 0700) != 0 && errno != EEXIST &&
        slash == std::string::npos) {
      return Error::from_errno(errno, step);
    }
    if (slash == std::string::npos) break;
  }
  std::string temporary = target + ".XXXXXX";
  const UniqueFd file(::mkostemp(temporary.data(), O_CLOEXEC));  // mode 0600
  if (!file) return Error::from_errno(errno, step);
  const auto fail = [&](Error error) {
    ::unlink(temporary.c_str());
    return error;
  };
  if (auto written = write_all(file.get(), text); !written)
    return fail(std::move(written).error().during(step));
  if (::fsync(file.get()) != 0 || ::rename(temporary.c_str(), target.c_str()) != 0) {
    return fail(Error::from_errno(errno, step));
  }
  return {};
}

Result<void> write_auth_file(const AuthFile& file) {
  // Keep docker's format and the existing order of the members.
  const SecretText text(file.json.str(1, '\t', Json::Order::kept) + "\n");
  return replace_file(file.path, text.text());
}

Result<void> tell_helper(const std::string& helper, const char* verb, const std::string& input) {
  const std::string program = "docker-credential-" + helper;
  const auto output = SPC_TRY(run_command({program, verb}, input));
  if (output.status == 0) return {};
  return Error(ErrorKind::unavailable,
               formatted("credential helper {} {}: {}", in_quotes(program), verb, output.ending()));
}

Json entry_of(const RegistrySecret& secret) {
  Json entry = Json::object();
  if (!secret.registry_token.empty()) {
    entry["registrytoken"] = secret.registry_token.text();
  } else {
    entry["auth"] = base64(secret.username + ":" + secret.password.text());
    if (!secret.identity_token.empty()) entry["identitytoken"] = secret.identity_token.text();
  }
  return entry;
}

/// Returns the file for a new login: the first with an entry for the registry, which would
/// otherwise hide the new one.
Result<AuthFile> file_for(const CredentialPlaces& places, const ImageReference& registry,
                          Log& log) {
  for (const auto& path : places.json_files) {
    auto file = SPC_TRY(read_auth_file(path, log));
    if (!entries_for(file, registry).empty()) return file;
  }
  return read_auth_file(places.named_file.empty() ? places.docker_file : places.named_file, log);
}

}  // namespace

Result<std::string> store_credentials(const CredentialPlaces& places, const std::string& registry,
                                      const RegistrySecret& secret, Log& log) {
  const auto image = SPC_TRY(whole_registry(registry));
  auto file = SPC_TRY(file_for(places, image, log));
  const std::string name = docker_name_of(image.registry);
  const std::string helper = SPC_TRY(helper_of(file, image));
  for (const auto& old : entries_for(file, image)) file.json["auths"].erase(old);
  if (!helper.empty()) {
    const bool is_token = !secret.identity_token.empty();
    const Json question{
        {"ServerURL", name},
        {"Username", is_token ? "<token>" : secret.username},
        {"Secret", is_token ? secret.identity_token.text() : secret.password.text()}};
    const SecretText input(question.str(0, ' ', Json::Order::kept));
    SPC_TRY(tell_helper(helper, "store", input.text()));
    file.json["auths"][name] = Json::object();  // docker's mark for a helper's entry
  } else {
    file.json["auths"][name] = entry_of(secret);
  }
  SPC_TRY(write_auth_file(file));
  return helper.empty() ? file.path : "docker-credential-" + helper;
}

Result<std::vector<std::string>> remove_credentials(const CredentialPlaces& places,
                                                    const std::string& registry, Log& log) {
  const auto image = SPC_TRY(whole_registry(registry));
  std::vector<std::string> removed;
  for (const auto& path : places.json_files) {
    auto file = SPC_TRY(read_auth_file(path, log));
    if (!file.exists) continue;
    const auto names = entries_for(file, image);
    const std::string helper = SPC_TRY(helper_of(file, image));
    if (!helper.empty()) {
      const auto known = ask_helper(helper, image.registry);
      if (known && *known) {
        SPC_TRY(tell_helper(helper, "erase", docker_name_of(image.registry) + "\n"));
        removed.push_back("docker-credential-" + helper);
      } else if (!known && !names.empty()) {
        return known.error();
      }
    }
    if (names.empty()) continue;
    for (const auto& name : names) file.json["auths"].erase(name);
    SPC_TRY(write_auth_file(file));
    removed.push_back(path);
  }
  const auto enroot = SPC_TRY(read_credential_file(places.enroot_file, log));
  if (enroot) {
    const auto kept = secret_in_enroot(enroot->text(), places.enroot_file, image, "", false);
    if (!kept || *kept) {
      log.write(LogLevel::warning,
                formatted("credentials remain for {} in {}, which must be edited manually",
                          in_quotes(image.registry), in_quotes(places.enroot_file)));
    }
  }
  return removed;
}

// --- credentials ---

namespace {

using Found = Result<std::optional<RegistrySecret>>;

Found in_json_file(const std::string& path, const ImageReference& image, const std::string& user,
                   Log& log) {
  const auto text = SPC_TRY(read_credential_file(path, log));
  if (!text || text->empty()) return std::optional<RegistrySecret>();
  const std::string what = "credentials " + in_quotes(path);
  const Json file = SPC_TRY(parse_json_object(text->text(), what));
  return secret_in_json(file, path, image, user);
}

Found in_enroot_file(const std::string& path, const ImageReference& image, const std::string& user,
                     Log& log) {
  const auto text = SPC_TRY(read_credential_file(path, log));
  if (!text) return std::optional<RegistrySecret>();
  struct stat status {};
  const bool only_mine = ::stat(path.c_str(), &status) == 0 && status.st_uid == ::getuid() &&
                         (status.st_mode & (S_IWGRP | S_IWOTH)) == 0;
  return secret_in_enroot(text->text(), path, image, user, only_mine);
}

}  // namespace

Result<std::optional<RegistrySecret>> find_credentials(const CredentialPlaces& places,
                                                       const ImageReference& image,
                                                       const std::string& user, Log& log) {
  std::vector<Error> troubles;
  std::optional<RegistrySecret> secret;
  const auto look = [&](Found found) {
    if (!found)
      troubles.push_back(std::move(found).error());
    else
      secret = *std::move(found);
    return secret.has_value();
  };
  if (!places.named_file.empty() && ::access(places.named_file.c_str(), F_OK) != 0) {
    log.write(LogLevel::warning, formatted("$REGISTRY_AUTH_FILE names {}, which does not exist",
                                           in_quotes(places.named_file)));
  }
  bool found = false;
  for (const auto& path : places.json_files) {
    found = look(in_json_file(path, image, user, log));
    if (found) break;
  }
  if (!found) found = look(in_enroot_file(places.enroot_file, image, user, log));
  if (!found && !troubles.empty()) return std::move(troubles.front());
  for (const Error& trouble : troubles) log.write(LogLevel::warning, trouble.message());
  return secret;
}

Result<void> answer_credentials(int socket, const UserSourceMessage& question,
                                const ImageReference& image, Log& log) {
  UserSourceMessage answer;
  const auto fail = [&](const Error& error) {
    answer.kind = UserSourceKind::failed;
    answer.error = WireError(error);
    return send_struct(socket, answer);
  };
  const std::string_view registry = question.text.view();
  if (registry != image.registry) {
    return fail(
        Error(ErrorKind::refused, formatted("credentials for {} are not sent: the image is from {}",
                                            in_quotes(registry), in_quotes(image.registry))));
  }
  const std::string user = question.user.str();
  const auto secret = find_credentials(CredentialPlaces::of_user(), image, user, log);
  if (!secret) return fail(secret.error());
  answer.kind = *secret ? UserSourceKind::secret : UserSourceKind::none;
  if (!*secret) return send_struct(socket, answer);
  const auto file = (*secret)->to_file();
  if (!file) return fail(file.error());
  const int descriptors[] = {file->get()};
  return send_struct(socket, answer, descriptors);
}

}  // namespace spc
