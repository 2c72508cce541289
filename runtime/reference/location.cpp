#include "reference/location.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>

#include "base/format.hpp"
#include "reference/reference.hpp"

namespace spc {

// --- user path ---

namespace {

/// Returns the first variable or command that a shell would have replaced; empty if none.
std::string_view unexpanded(std::string_view text) {
  for (std::size_t at = text.find_first_of("$`"); at != std::string_view::npos;
       at = text.find_first_of("$`", at + 1)) {
    const std::string_view rest = text.substr(at);
    if (rest[0] == '`') return rest;
    if (rest.size() == 1) return {};
    if (rest[1] == '{' || rest[1] == '(')
      return rest.substr(0, std::max<std::size_t>(rest.find_first_of("})"), 1) + 1);
    const auto is_of_name = [](unsigned char c) { return std::isalnum(c) != 0 || c == '_'; };
    if (!is_of_name(static_cast<unsigned char>(rest[1]))) continue;
    const auto* end = std::find_if_not(rest.begin() + 1, rest.end(), is_of_name);
    return rest.substr(0, static_cast<std::size_t>(end - rest.begin()));
  }
  return {};
}

/// Returns the length of a scheme before a path, as in oci-archive:~/x.tar.
std::size_t scheme_before_path(std::string_view text) {
  for (const std::string_view scheme : {"oci:", "oci-archive:", "docker-archive:", "oci-layer:"}) {
    if (text.starts_with(scheme)) return scheme.size();
  }
  return 0;
}

}  // namespace

UserPaths UserPaths::of(const std::map<std::string, std::string>& variables,
                        Variables expanded_by) {
  const auto value = [&](const char* name) {
    const auto found = variables.find(name);
    return found == variables.end() ? std::string() : found->second;
  };
  UserPaths paths{.home = value("HOME"), .here = value("PWD"), .variables = expanded_by};
  if (!paths.here.starts_with('/')) paths.here = value("SLURM_SUBMIT_DIR");
  if (!paths.home.starts_with('/')) paths.home.clear();
  return paths;
}

Result<void> UserPaths::refuse_variables(const std::string& typed) const {
  if (variables == Variables::seen || typed.starts_with("http")) return {};
  const std::string_view variable = unexpanded(typed);
  if (variable.empty() || ::access(typed.c_str(), F_OK) == 0) return {};
  const char* const what = typed.find('/') == std::string::npos ? "it" : "the path";
  return Error(ErrorKind::invalid,
               formatted("{}: {} is not expanded", in_quotes(without_secrets(typed)),
                         in_quotes(variable)))
      .hint(variables == Variables::slurm
                ? formatted("Slurm expands no variables in #SBATCH lines: write {} in full, or "
                            "give the option to srun",
                            what)
                : formatted("a shell expands variables outside of single quotes: write {} in full, "
                            "or use double quotes",
                            what));
}

Result<std::string> UserPaths::resolve(const std::string& typed) const {
  const std::size_t begin = scheme_before_path(typed);
  const std::string_view path = std::string_view(typed).substr(begin);
  if (!path.starts_with('~')) return typed;
  const std::string_view name = path.substr(0, path.find('/'));
  if (name != "~") {
    return Error(ErrorKind::invalid,
                 formatted("{}: only ~/ (the user's own home directory) is expanded",
                           in_quotes(typed)))
        .hint(formatted("use the absolute path: echo {} prints it", printable(name)));
  }
  std::string directory = home;
  if (!directory.starts_with('/') || (directory == "/" && variables != Variables::seen)) {
    return Error(ErrorKind::invalid,
                 formatted("{}: the user's home directory is not known", in_quotes(typed)))
        .hint("use the absolute path, or set HOME");
  }
  while (directory.size() > 1 && directory.ends_with('/')) directory.pop_back();
  return typed.substr(0, begin).append(directory).append(path.substr(1));
}

// --- file URL ---

namespace {

constexpr std::string_view kDigestMark = "#sha256=";

bool is_plain(char c) { return c > 0x20 && c < 0x7f && c != '"' && c != '\\'; }

/// Returns whether `image` is a path or a scheme and a path. Paths may contain any character.
bool is_local(std::string_view image) {
  return image.find_first_of("./~") == 0 || image.starts_with("oci:") ||
         image.starts_with("oci-archive:") || image.starts_with("docker-archive:");
}

}  // namespace

std::string without_secrets(std::string_view image) {
  if (is_local(image)) return std::string(image);
  const auto scheme = image.find("://");
  const std::size_t begin = scheme == std::string_view::npos ? 0 : scheme + 3;
  std::string_view rest = image.substr(begin), digest;
  const auto mark = rest.find('#');  // without http: REGISTRY#NAME
  if (mark != std::string_view::npos && image.starts_with("http")) {
    if (rest.substr(mark).starts_with(kDigestMark)) digest = rest.substr(mark);
    rest = rest.substr(0, mark);
  }
  rest = rest.substr(0, rest.find('?'));
  const auto slash = rest.find_first_of("/#");
  const auto user = rest.substr(0, slash).rfind('@');
  const bool has_user = user != std::string_view::npos && slash != std::string_view::npos;
  if (has_user &&
      (image.starts_with("http") || rest.substr(0, user).find(':') != std::string_view::npos)) {
    rest.remove_prefix(user + 1);
  }
  return std::string(image.substr(0, begin)).append(rest).append(digest);
}

std::string name_without_secrets(std::string_view image) {
  const auto query = image.find('?');
  const std::string shown = without_secrets(image);
  if (query == std::string_view::npos || is_local(image) ||
      shown.find(kDigestMark) != std::string::npos)
    return shown;
  return shown + "?~" + name_key(image.substr(query)).hex().substr(0, 16);
}

Result<FileUrl> FileUrl::parse(std::string_view text) {
  const auto mark = text.find('#');
  FileUrl file{.url = std::string(text.substr(0, mark)), .host = {}, .path = {}, .digest = {}};
  const std::string_view rest =
      std::string_view(file.url).substr(std::min(kScheme.size(), file.url.size()));
  const auto slash = rest.find('/');
  file.host = rest.substr(0, slash);
  const bool has_path = slash != std::string_view::npos && slash + 1 < rest.size();
  if (!text.starts_with(kScheme) || !has_path || file.host.empty() ||
      file.host.find('@') != std::string::npos ||
      !std::all_of(rest.begin(), rest.end(), is_plain)) {
    return Error(ErrorKind::invalid, "image: is not a URL of a file").hint("https://HOST/PATH");
  }
  file.path = rest.substr(slash + 1);
  if (mark == std::string_view::npos) return file;
  if (!text.substr(mark).starts_with(kDigestMark))
    return Error(ErrorKind::invalid, "image: a URL ends in #sha256=HEX, or has no #");
  file.digest = SPC_TRY_DURING(
      "image", Digest::parse("sha256:" + std::string(text.substr(mark + kDigestMark.size()))));
  return file;
}

// --- location ---

namespace {

using Kind = ImageLocation::Kind;

constexpr std::size_t kMaxText = 4096;  // characters; PATH_MAX, and more than any registry accepts
constexpr std::size_t kMaxName = 512;   // characters; of an image in an archive or a local storage

struct Scheme {
  std::string_view prefix;
  Kind kind;
  std::string_view form;  ///< for hints
};
constexpr std::array<Scheme, 5> kSchemes = {
    {{"oci:", Kind::oci_layout, "oci:DIR[:REF]"},
     {"oci-archive:", Kind::oci_archive, "oci-archive:FILE[:REF]"},
     {"docker-archive:", Kind::docker_archive, "docker-archive:FILE[:REF]"},
     {"dockerd://", Kind::docker_daemon, "dockerd://NAME"},
     {"podman://", Kind::podman, "podman://NAME"}}};
constexpr char kAllForms[] =
    "[docker://]NAME, oci:DIR, oci-archive:FILE, docker-archive:FILE, dockerd://NAME, "
    "podman://NAME, oras://NAME, https://HOST/FILE, or "
    "a path that begins with ./ or /";
constexpr std::string_view kOras = "oras://";

constexpr char kSifOfApptainer[] = "apptainer pull writes a .sif: use that file, ./FILE.sif";

/// Schemes of skopeo and other tools that have another form here or are not supported, with a hint.
constexpr std::array<std::pair<std::string_view, std::string_view>, 8> kForeign = {
    {{"library://", kSifOfApptainer},
     {"shub://", kSifOfApptainer},
     {"docker-daemon:", "use dockerd://NAME"},
     {"containers-storage:", "use podman://NAME"},
     {"dir:", "copy it into an OCI layout: skopeo copy dir:PATH oci:PATH"},
     {"sif:", "use the file's path, for example ./FILE"},
     {"ostree:", kAllForms},
     {"tarball:", "use the file's path, for example ./FILE"}}};

constexpr std::array<std::string_view, 10> kFileEndings = {
    ".sqsh",   ".sqfs", ".squashfs", ".sif",    ".tar",
    ".tar.gz", ".tgz",  ".tar.zst",  ".tar.xz", ".tar.bz2"};

/// Returns an error that never contains a password.
Error bad_location(std::string_view text, const std::string& why) {
  return {ErrorKind::invalid, formatted("image{}: {}",
                                        text.find('@') == std::string_view::npos
                                            ? " " + in_quotes(without_secrets(text))
                                            : std::string(),
                                        why)};
}

bool is_control(char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; }
bool is_letter_or_digit(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

/// Checks the name, identifier or digest of an image in an archive, a storage or a daemon. It must
/// not look like an option, because programs get it as an argument.
Result<void> check_name(std::string_view text, std::string_view name) {
  const auto ok = [](char c) {
    return is_letter_or_digit(c) || std::string_view("._-/:@+[]").find(c) != std::string_view::npos;
  };
  if (name.size() > kMaxName)
    return bad_location(text, "the image's name has more than 512 characters");
  if (!std::all_of(name.begin(), name.end(), ok)) {
    return bad_location(text, "an image's name consists of letters, digits and . _ - / : @ +");
  }
  if (!is_letter_or_digit(name.front()) && name.front() != '[' && name.front() != '_') {
    return bad_location(text, "an image's name begins with a letter or a digit");
  }
  return {};
}

Result<void> check_path(std::string_view text, std::string_view path) {
  if (std::any_of(path.begin(), path.end(), is_control))
    return bad_location(text, "control characters are not allowed in an image's path");
  if (path[0] == '~' && path.size() > 1 && path[1] != '/') {
    return bad_location(text, "only ~/ (the user's own home directory) is expanded")
        .hint("use the absolute path");
  }
  if (path == "~") return bad_location(text, "is the home directory, not an image");
  return {};
}

/// Refuses texts that cannot be an image's name at a registry and have no known form. Texts with an
/// '@' are left to ImageReference, which knows which part may be shown.
Result<void> refuse_other_forms(std::string_view text) {
  const std::string_view scheme = text.substr(0, text.find(':'));
  const bool is_word = std::all_of(scheme.begin(), scheme.end(), [](char c) {
    return is_letter_or_digit(c) || c == '-' || c == '+';
  });
  const std::string_view behind = text.substr(scheme.size());
  if (is_word && (behind.starts_with("://") || scheme == "file")) {
    auto error =
        Error(ErrorKind::invalid, "image: unknown scheme " + in_quotes(std::string(scheme) + ":"));
    if (scheme == "http") {
      return std::move(error).hint(
          "for an image in a registry use docker://REGISTRY/NAME:TAG; for a file, "
          "https://HOST/FILE");
    }
    if (scheme == "file") return std::move(error).hint("use the path alone, for example /DIR/FILE");
    for (const auto& [prefix, advice] : kForeign) {
      if (text.starts_with(prefix)) return std::move(error).hint(advice);
    }
    return std::move(error).hint(kAllForms);
  }
  for (const auto& [prefix, advice] : kForeign) {
    if (text.starts_with(prefix)) {
      return Error(ErrorKind::invalid, "image: unknown scheme " + in_quotes(prefix)).hint(advice);
    }
  }
  if (text.find('@') != std::string_view::npos) return {};
  const auto did_you_mean = [&] {
    return formatted("did you mean {}?", in_quotes("./" + std::string(text)));
  };
  // then the ending is part of the tag
  const bool has_tag = text.find(':', text.rfind('/') + 1) != std::string_view::npos;
  for (const std::string_view ending : kFileEndings) {
    if (!has_tag && text.ends_with(ending)) {
      return bad_location(text, "a file needs a path")
          .hint(formatted("{} or, for an image of this name, with its tag: NAME{}:latest",
                          did_you_mean(), ending));
    }
  }
  if (text.ends_with('/'))
    return bad_location(text, "a directory needs a path").hint(did_you_mean());
  return {};
}

Result<ImageLocation> parse_scheme(std::string_view text, const Scheme& scheme) {
  ImageLocation location{.kind = scheme.kind};
  const std::string_view rest = text.substr(scheme.prefix.size());
  if (scheme.prefix.ends_with("//")) {
    if (rest.empty()) return bad_location(text, "the image's name is missing").hint(scheme.form);
    SPC_TRY(check_name(text, rest));
    location.reference = rest;
    return location;
  }
  // As in skopeo, the path ends at the first colon. A path with a colon needs the form ./PATH.
  const std::size_t colon = rest.find(':');
  if (rest.starts_with("//"))
    return bad_location(text, "only the names of images follow //")
        .hint(formatted("{}{}", scheme.prefix, rest.substr(std::min<std::size_t>(
                                                   rest.find_first_not_of('/'), 2))));
  if (colon == 0 || rest.empty())
    return bad_location(text, "the path is missing").hint(scheme.form);
  SPC_TRY(check_path(text, rest.substr(0, colon)));
  location.path = rest.substr(0, colon);
  if (colon == std::string_view::npos) return location;
  if (colon + 1 == rest.size())
    return bad_location(text, "the name after the last ':' is missing").hint(scheme.form);
  SPC_TRY(check_name(text, rest.substr(colon + 1)));
  location.reference = rest.substr(colon + 1);
  return location;
}

/// Parses the location of a file at a server. Rules for images apply to its name there.
Result<ImageLocation> parse_remote_file(std::string_view text, std::string_view default_registry) {
  ImageLocation location{.kind = Kind::remote_file};
  if (text.starts_with(kOras)) {
    location.name = SPC_TRY(ImageReference::parse(text.substr(kOras.size()), default_registry));
    location.reference = std::string(kOras) + location.name.canonical();
    return location;
  }
  const auto file = SPC_TRY(FileUrl::parse(text));
  location.name.registry = SPC_TRY(parse_registry(file.host));
  location.name.repository = file.path;
  location.name.digest = file.digest;
  location.reference = text;
  return location;
}

}  // namespace

Result<ImageLocation> ImageLocation::parse(std::string_view text,
                                           std::string_view default_registry) {
  if (text.empty()) return Error(ErrorKind::invalid, "the image's name is empty");
  if (text.size() > kMaxText) return bad_location(text, "the name is longer than 4096 characters");
  if (text.find('\0') != std::string_view::npos)
    return bad_location(text, "NUL characters are not allowed");

  if (text[0] == '.' || text[0] == '/' || text[0] == '~') {
    SPC_TRY(check_path(text, text));
    ImageLocation location{.kind = Kind::path};
    location.path = text;
    return location;
  }
  for (const Scheme& scheme : kSchemes) {
    if (text.starts_with(scheme.prefix)) return parse_scheme(text, scheme);
  }
  if (text.starts_with(kOras) || text.starts_with(FileUrl::kScheme))
    return parse_remote_file(text, default_registry);
  if (!text.starts_with("docker://")) SPC_TRY(refuse_other_forms(text));
  ImageLocation location;
  location.name = SPC_TRY(ImageReference::parse(text, default_registry));
  return location;
}

std::string ImageLocation::canonical() const {
  if (kind == Kind::registry) return name.canonical();
  if (kind == Kind::path) return path;
  if (kind == Kind::remote_file) return without_secrets(reference);
  const auto* scheme = std::find_if(kSchemes.begin(), kSchemes.end(),
                                    [&](const Scheme& one) { return one.kind == kind; });
  std::string text(scheme->prefix);
  if (path.empty()) return text + reference;
  return text + path + (reference.empty() ? "" : ":" + reference);
}

}  // namespace spc
