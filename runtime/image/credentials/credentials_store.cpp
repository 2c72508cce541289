#include "image/credentials/credentials_store.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <memory>

#include "base/base64.hpp"
#include "base/file.hpp"
#include "base/format.hpp"
#include "image/credentials/credentials_command.hpp"
#include "image/credentials/credentials_enroot.hpp"
#include "image/credentials/credentials_json.hpp"
#include "image/registry/json.hpp"

namespace spc {
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

/// Entries for the whole registry; one for a part of it is none of our business.
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

/// A new file beside the old one, which a link may lead to, and then in its place.
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
  // As docker writes it, in the order that the user and other programs gave it.
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

/// Where a login belongs: what is looked at first must not hide it.
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
    file.json["auths"][name] = Json::object();  // docker's note that the helper knows it
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

}  // namespace spc
