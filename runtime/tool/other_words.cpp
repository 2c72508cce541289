#include "tool/other_words.hpp"

#include <grp.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <iterator>

#include "base/format.hpp"
#include "base/text.hpp"

namespace spc::tool {
namespace {

using Words = std::vector<std::string>;

/// An option of another program.
struct OtherWord {
  const char* names;                                      ///< as in an OptionRow
  bool has_argument;                                      ///< in the next word, or behind =
  const char* ours;                                       ///< nullptr: nothing takes its place
  const char* advice = nullptr;                           ///< it is refused, and this is said
  Result<Words> (*change)(const std::string&) = nullptr;  ///< what its argument becomes
};

/// docker's SRC:DST:ro,z. The labels are SELinux's, which other containers would have to share; the
/// rest says how macOS shares files.
Result<Words> volume(const std::string& text) {
  const auto parts = split(text, ':');
  if (!text.starts_with('/') && !text.starts_with('.') && !text.starts_with('~')) {
    return Error(ErrorKind::invalid,
                 formatted("--volume: {} is no path, and there are no volumes with names",
                           in_quotes(text)))
        .hint("a directory: --mounts=./DIR:/DST");
  }
  std::string mount(parts[0]);
  if (parts.size() > 1) mount += ":" + std::string(parts[1]);
  std::string flags;
  for (const std::string_view flag :
       parts.size() > 2 ? split(parts[2], ',') : std::vector<std::string_view>()) {
    constexpr std::string_view kNothing[] = {"z",         "Z",          "U", "cached",
                                             "delegated", "consistent", "rw"};
    if (std::ranges::find(kNothing, flag) == std::end(kNothing))
      flags += (flags.empty() ? ":" : "+") + std::string(flag);
  }
  return Words{"--mounts=" + mount + flags};
}

/// Apptainer's: another directory is the home.
Result<Words> home(const std::string& text) {
  const auto colon = text.find(':');
  const std::string target = colon == std::string::npos ? text : text.substr(colon + 1);
  if (!target.starts_with('/'))
    return Error(ErrorKind::invalid,
                 formatted("--home: {} is not an absolute path", in_quotes(target)));
  return Words{"--mounts=" + text.substr(0, colon) + ":" + target, "--env=HOME=" + target};
}

/// docker's: who one is inside.
Result<Words> user(const std::string& text) {
  const std::string name = text.substr(0, text.find(':'));
  if (name == "0" || name == "root") return Words{"--remap-root"};
  const char* own = std::getenv("USER");
  if (name == std::to_string(::geteuid()) || (own != nullptr && name == own)) return Words{};
  return Error(
             ErrorKind::invalid,
             formatted("--user: nobody becomes {} in a container, it runs as you", in_quotes(name)))
      .hint("--remap-root runs it as root of the container");
}

/// docker's and podman's: the user has all of his groups anyway, and gets no other.
Result<Words> group(const std::string& text) {
  if (text == "keep-groups") return Words{};
  auto id = static_cast<gid_t>(-1);
  if (const struct group* named = ::getgrnam(text.c_str())) {
    id = named->gr_gid;
  } else if (!text.empty() && text.find_first_not_of("0123456789") == std::string::npos) {
    id = static_cast<gid_t>(std::strtoul(text.c_str(), nullptr, 10));
  }
  if (id == ::getegid() || ::group_member(id) != 0) return Words{};
  return Error(ErrorKind::invalid,
               formatted("--group-add: you are not a member of the group {}", in_quotes(text)))
      .hint("the groups of a user are kept, and no others can be added: see id");
}

/// docker's --gpus: which ones is not its to say, CUDA_VISIBLE_DEVICES is.
Result<Words> gpus(const std::string& text) {
  if (text == "all") return Words{"--gpu"};
  return Error(ErrorKind::invalid, formatted("--gpus: {} is not allowed", in_quotes(text)))
      .hint("all; --env=CUDA_VISIBLE_DEVICES=0,1 chooses");
}

/// podman's and docker's.
Result<Words> cgroup_namespace(const std::string& text) {
  if (text == "host") return Words{};
  if (text == "private") return Words{"--unshare=cgroup"};
  return Error(ErrorKind::invalid, formatted("--cgroupns: {} is not allowed", in_quotes(text)))
      .hint("private or host");
}

constexpr OtherWord kOthers[] = {
    {"--bind,-B", true, "--mounts"},
    {"--volume,-v", true, nullptr, nullptr, volume},
    {"--pwd,--cwd,-w,-W", true, "--workdir"},
    {"-e", true, "--env"},
    {"--home,-H", true, nullptr, nullptr, home},
    {"--user,-u", true, nullptr, nullptr, user},
    {"--gpus", true, nullptr, nullptr, gpus},
    {"--group-add", true, nullptr, nullptr, group},
    {"--cgroupns", true, nullptr, nullptr, cgroup_namespace},
    {"--nv,--rocm,--nvccli", false, "--gpu"},
    {"--contain,-c,--containall,-C", false, "--contain"},
    {"--no-home", false, "--no-mount-home"},
    {"--writable-tmpfs", false, "--writable"},
    {"--read-only", false, "--readonly"},
    {"--fakeroot,-f", false, "--remap-root"},
    {"--detach", false, "-d"},
    {"--rm,--interactive,-i,-t,-it,-ti,--init,--compat,--no-privs,--userns,-U", false,
     nullptr},  // as it is anyway
    {"--publish,-p", true, nullptr,
     "ports are the host's: a server in the container is reached at this machine's address"},
    {"--network,--net", true, nullptr,
     "the network is the host's; only a step of srun can have one of its own"},
    {"--overlay", true, nullptr, "--changes=DIR keeps what is written, in a directory"},
    {"--privileged", false, nullptr,
     "no option gives privileges; --remap-root runs the command as root of the container"},
    {"--cap-add", true, nullptr,
     "no option gives privileges; --remap-root runs the command as root of the container"},
    {"--restart", true, nullptr,
     "nothing starts a container again; jobs of Slurm do: sbatch --requeue"},
    {"--memory,-m,--cpus", true, nullptr,
     "limits are those of the job: srun --mem, --cpus-per-task"},
    {"--cleanenv", false, nullptr,
     "the image's variables win already; env -i COMMAND drops the others"},
};

bool is_named(const char* names, std::string_view word) {
  return formatted(",{},", names).find(formatted(",{},", word)) != std::string::npos;
}

const OtherWord* find_other(std::string_view name) {
  const auto found = std::ranges::find_if(
      kOthers, [&](const OtherWord& one) { return is_named(one.names, name); });
  return found == std::end(kOthers) ? nullptr : &*found;
}

Result<void> add_other(const OtherWord& other, const std::string& name, const std::string& argument,
                       Words& ours) {
  if (other.advice != nullptr)
    return Error(ErrorKind::invalid, name + ": not an option here").hint(other.advice);
  Words instead;
  if (other.change != nullptr) instead = SPC_TRY(other.change(argument));
  if (other.ours != nullptr)
    instead.push_back(other.ours + (other.has_argument ? "=" + argument : ""));
  ours.insert(ours.end(), instead.begin(), instead.end());
  return {};
}

}  // namespace

Result<Words> in_our_words(std::span<const std::string> words, std::span<const OptionRow> rows) {
  Words ours;
  std::size_t at = 0;
  for (; at < words.size() && words[at].starts_with('-') && words[at] != "--"; ++at) {
    const std::string& word = words[at];
    const auto equals = word.find('=');
    const std::string name = word.substr(0, equals);
    const auto row =
        std::ranges::find_if(rows, [&](const OptionRow& one) { return is_named(one.names, name); });
    const OtherWord* other = row == rows.end() ? find_other(name) : nullptr;
    const bool takes_next =
        equals == std::string::npos && at + 1 < words.size() &&
        (other != nullptr ? other->has_argument : row != rows.end() && row->argument != nullptr);
    const std::string& argument = takes_next ? words[++at] : word;
    if (other == nullptr) {
      ours.push_back(word);
      if (takes_next) ours.push_back(argument);
    } else {
      SPC_TRY(add_other(*other, name, takes_next ? argument : word.substr(equals + 1), ours));
    }
  }
  ours.insert(ours.end(), words.begin() + static_cast<std::ptrdiff_t>(at), words.end());
  return ours;
}

}  // namespace spc::tool
