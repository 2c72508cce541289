#include "tool/surroundings/places.hpp"

#include <fcntl.h>
#include <pwd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <climits>
#include <cstdlib>
#include <vector>

#include "base/format.hpp"
#include "protocol/store_layout.hpp"

namespace spc::tool {

namespace {

/// Returns an XDG variable. Only absolute paths are valid (XDG Base Directory Specification).
std::string absolute_variable(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr && value[0] == '/' ? value : "";
}

std::string home_directory() {
  if (auto home = absolute_variable("HOME"); !home.empty()) return home;
  std::vector<char> buffer(16 * 1024);
  passwd entry{};
  passwd* found = nullptr;
  if (::getpwuid_r(::geteuid(), &entry, buffer.data(), buffer.size(), &found) != 0 ||
      found == nullptr)
    return {};
  return found->pw_dir != nullptr && found->pw_dir[0] == '/' ? found->pw_dir : "";
}

std::string under(const std::string& variable, const std::string& home, const char* default_place) {
  if (!variable.empty()) return variable + "/spank-container";
  return home.empty() ? std::string() : home + default_place + "/spank-container";
}

}  // namespace

Result<Places> Places::find() {
  Places places;
  places.home = home_directory();
  places.config = SPC_CONFIG_FILE;
  if (::geteuid() == 0) {
    places.own_store = false;
    places.store = SPC_STORE_DIR;
    places.running = SPC_RUN_DIR "/running";
    return places;
  }
  places.store = under(absolute_variable("XDG_DATA_HOME"), places.home, "/.local/share");
  if (places.store.empty()) {
    return Error(ErrorKind::not_found, "locate the image store: the user has no home directory")
        .hint("set XDG_DATA_HOME");
  }
  places.running = places.store + "/running";
  const std::string config =
      under(absolute_variable("XDG_CONFIG_HOME"), places.home, "/.config") + "/config.toml";
  if (::access(config.c_str(), F_OK) == 0) places.config = config;
  return places;
}

Result<std::string> absolute_path(const std::string& path) {
  if (path.starts_with('/')) return path;
  std::array<char, PATH_MAX> here{};
  if (::getcwd(here.data(), here.size()) == nullptr)
    return Error::from_errno(errno, "get the work directory");
  return std::string(here.data()) + "/" + path;
}

Result<void> make_directories(const std::string& path) {
  for (std::size_t slash = path.find('/', 1);; slash = path.find('/', slash + 1)) {
    const std::string part = path.substr(0, slash);
    if (::mkdir(part.c_str(), 0700) != 0 && errno != EEXIST) {
      struct stat status {};
      const int err = errno;
      if (::stat(part.c_str(), &status) != 0)
        return Error::from_errno(err, "make directory " + in_quotes(part));
    }
    if (slash == std::string::npos) return {};
  }
}

Result<UniqueFd> make_own_store(const Places& places) {
  for (const char* part : {store_layout::kLayers, store_layout::kRecords, store_layout::kNames,
                           store_layout::kGrants, store_layout::kImages, "running", "workspace"}) {
    SPC_TRY_DURING("set up the user's image store", make_directories(places.store + "/" + part));
  }
  const std::string locks = places.store + "/locks";
  const UniqueFd made(::open(locks.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!made)
    return Error::from_errno(errno, "set up the user's image store: create " + in_quotes(locks));
  return open_store(places.store);
}

Result<UniqueFd> open_store(const std::string& path) {
  UniqueFd store(::open(path.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (store) return store;
  const int err = errno;
  if (err == ENOENT)
    return Error(ErrorKind::not_found, formatted("no image store {} yet", in_quotes(path)));
  return Error::from_errno(err, "open the image store " + in_quotes(path));
}

}  // namespace spc::tool
