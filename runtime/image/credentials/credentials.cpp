#include "image/credentials/credentials.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include "base/format.hpp"
#include "base/socket.hpp"
#include "image/credentials/credentials_enroot.hpp"
#include "image/credentials/credentials_json.hpp"
#include "image/registry/json.hpp"

namespace spc {
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
