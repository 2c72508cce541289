#include "image/credentials/credentials_places.hpp"

#include <fcntl.h>
#include <pwd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>

#include "base/file.hpp"
#include "base/format.hpp"

namespace spc {
namespace {

constexpr std::size_t kMaxFile = 1 << 20;

/// An empty variable counts as none.
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

}  // namespace spc
