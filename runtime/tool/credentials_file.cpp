#include "tool/credentials_file.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

#include "base/file.hpp"
#include "base/unique_fd.hpp"
#include "image/base64.hpp"
#include "image/json.hpp"
#include "image/user_source/credentials_json.hpp"
#include "image/user_source/credentials_places.hpp"
#include "tool/places.hpp"

namespace spc {
namespace {

Result<std::string> path_of_file() {
  const auto places = CredentialPlaces::of_user();
  std::string path = places.named_file.empty() ? places.docker_file : places.named_file;
  if (path.empty()) {
    return Error(ErrorKind::not_found, "find the file for credentials: you have no home directory").hint("set DOCKER_CONFIG");
  }
  return path;
}

Result<Json> read_document(const std::string& path) {
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file && errno == ENOENT) return Json(Json::object());
  if (!file) return Error::from_errno(errno, "open " + spc::quoted(path));
  const auto text = SPC_TRY_DURING("read " + spc::quoted(path), read_file(file.get(), 1 << 20));
  return parse_json_object(text, path);
}

/// Only we may read it from its first byte on.
Result<void> write_document(const std::string& path, const Json& document) {
  const std::string next = path + "." + std::to_string(::getpid());
  ::unlink(next.c_str());
  const UniqueFd file(::open(next.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!file) return Error::from_errno(errno, "write " + spc::quoted(path));
  const auto written = write_all(file.get(), document.dump(1, '\t') + "\n");
  if (!written || ::fsync(file.get()) != 0 || ::rename(next.c_str(), path.c_str()) != 0) {
    const int err = errno;
    ::unlink(next.c_str());
    return written ? Error::from_errno(err, "write " + spc::quoted(path)) : written.error();
  }
  return {};
}

/// Two logins at once must not lose one another's entry.
Result<UniqueFd> lock_beside(const std::string& path) {
  SPC_TRY(make_directories(path.substr(0, path.rfind('/'))));
  UniqueFd directory(::open(path.substr(0, path.rfind('/')).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!directory) return Error::from_errno(errno, "open the directory of " + spc::quoted(path));
  while (::flock(directory.get(), LOCK_EX) != 0) {
    if (errno != EINTR) break;  // a file system without locks: as good as it gets
  }
  return directory;
}

}  // namespace

Result<std::string> store_credentials(const std::string& registry, const std::string& user, const std::string& password) {
  const auto path = SPC_TRY(path_of_file());
  const auto lock = SPC_TRY(lock_beside(path));
  auto document = SPC_TRY(read_document(path));
  ImageReference image;
  image.registry = registry;
  const auto helper = SPC_TRY(helper_for(document, path, image));
  if (!helper.empty()) {
    return Error(ErrorKind::refused, "login: " + spc::quoted(path) + " says that docker-credential-" + printable(helper) +
                                         " keeps the secrets of this registry")
        .hint("use docker login or podman login, or set REGISTRY_AUTH_FILE to another file");
  }
  Json& auths = document["auths"];
  if (!auths.is_object()) auths = Json::object();
  auths[docker_name_of(registry)] = {{"auth", base64(user + ":" + password)}};
  SPC_TRY(write_document(path, document));
  return path;
}

Result<std::string> remove_credentials(const std::string& registry) {
  const auto path = SPC_TRY(path_of_file());
  const auto lock = SPC_TRY(lock_beside(path));
  auto document = SPC_TRY(read_document(path));
  const auto auths = document.find("auths");
  if (auths == document.end() || !auths->is_object()) return std::string();
  bool found = false;
  for (const auto& name : {docker_name_of(registry), registry}) found = auths->erase(name) > 0 || found;
  if (!found) return std::string();
  SPC_TRY(write_document(path, document));
  return path;
}

}  // namespace spc
