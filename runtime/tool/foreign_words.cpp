#include <grp.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/format.hpp"
#include "base/result.hpp"
#include "base/text.hpp"
#include "tool/command.hpp"
#include "tool/surroundings/terminal.hpp"

namespace spc::tool {

// --- foreign options ---

namespace {

using Words = std::vector<std::string>;

/// An option of another container program.
struct OtherWord {
  const char* names;  ///< as in an OptionRow
  bool has_argument;  ///< in the next word or after =
  const char* ours;   ///< the replacement; nullptr: none
  /// Reason of the refusal, if the option is refused.
  const char* advice = nullptr;
  Result<Words> (*change)(const std::string&) = nullptr;  ///< converts the argument
  const char* note = nullptr;  ///< why the option, which is dropped, is not needed
};

/// Converts docker's SRC:DST:ro,z. The SELinux labels z and Z are dropped: other containers would
/// have to share them. The remaining suffixes dropped here select how macOS shares files.
Result<Words> volume(const std::string& text) {
  const auto parts = split(text, ':');
  if (std::string_view("/.~$").find(text[0]) == std::string_view::npos || text.empty()) {
    return Error(ErrorKind::invalid,
                 formatted("--volume: {} is not a path; named volumes are not supported",
                           in_quotes(text)))
        .hint("--volume=./DIR:/DST");
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

/// Converts --mount of docker and Apptainer: type=bind,source=SRC,target=DST,readonly.
Result<Words> mount(const std::string& text) {
  std::string type = "volume";
  std::string source;
  std::string target;
  std::string flags;
  for (const std::string_view field : split(text, ',')) {
    const std::string_view key = field.substr(0, field.find('='));
    const std::string value(field.substr(std::min(key.size() + 1, field.size())));
    if (key == "type") {
      type = value;
    } else if (key == "source" || key == "src") {
      source = value;
    } else if (key == "target" || key == "destination" || key == "dst") {
      target = value;
    } else if ((key == "readonly" || key == "ro") && value != "false") {
      flags = ":ro";
    } else if (key == "tmpfs-size") {
      flags = ":size=" + value;
    }
  }
  if (type == "tmpfs" && !target.empty()) return Words{"--mounts=tmpfs:" + target + flags};
  if (type == "bind" && !source.empty() && !target.empty())
    return Words{"--mounts=" + source + ":" + target + flags};
  return Error(ErrorKind::invalid, formatted("--mount: {} is not supported", in_quotes(text)))
      .hint("--mount=type=bind,source=./DIR,target=/DST");
}

/// Converts docker's --tmpfs DST[:size=SIZE,...].
Result<Words> tmpfs(const std::string& text) {
  const std::string target = text.substr(0, text.find(':'));
  std::string size;
  for (const std::string_view flag :
       split(text.substr(std::min(target.size() + 1, text.size())), ','))
    if (flag.starts_with("size=")) size = ":" + std::string(flag);
  return Words{"--mounts=tmpfs:" + target + size};
}

/// Converts -e of docker and podman: a variable. Apptainer's -e has no value, so the word behind it
/// is its image.
Result<Words> variable(const std::string& text) {
  const std::string name = text.substr(0, text.find_first_of("=,"));
  const bool is_name = name.find_first_not_of(
                           "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
                           "0123456789_*?") == std::string::npos;
  const bool is_lower = std::ranges::any_of(name, [](char c) { return c >= 'a' && c <= 'z'; });
  const bool is_alone = name == text && is_lower && std::getenv(name.c_str()) == nullptr;
  if (!name.empty() && is_name && !is_alone) return Words{"--env=" + text};
  return Error(ErrorKind::invalid, formatted("-e: {} is not a variable", in_quotes(text)))
      .hint("-e NAME=VALUE; for Apptainer's --cleanenv: scontainer run IMAGE env -i COMMAND");
}

/// Converts docker's --security-opt.
Result<Words> security(const std::string& text) {
  constexpr std::string_view kUsual[] = {"label", "no-new-privileges", "apparmor"};
  if (std::ranges::find(kUsual, text.substr(0, text.find_first_of("=:"))) != std::end(kUsual) ||
      text == "seccomp=unconfined" || text == "seccomp:unconfined")
    return Words{};  // the default
  if (text.starts_with("seccomp=")) return Words{"--security=" + text};
  return Error(ErrorKind::invalid,
               formatted("--security-opt: {} is not supported", in_quotes(text)))
      .hint("--security=seccomp=FILE");
}

/// Converts docker's --ipc, --pid, --uts and --userns.
Result<Words> of_host(const std::string& text) {
  if (text == "host" || text.starts_with("keep-id")) return Words{};
  return Error(ErrorKind::invalid,
               formatted("{} is not supported: the container shares the host's", in_quotes(text)))
      .hint("a step can have its own: srun --container-unshare=ipc,pid,uts");
}

/// Converts docker's --runtime.
Result<Words> runtime(const std::string& text) {
  if (text == "nvidia") return Words{"--gpu"};
  return text == "runc" || text == "crun"
             ? Result<Words>(Words{})
             : Result<Words>(Error(ErrorKind::invalid,
                                   formatted("--runtime: {} is not supported", in_quotes(text)))
                                 .hint("--gpu injects the GPU driver"));
}

/// Converts Apptainer's --home: another directory becomes the home directory.
Result<Words> home(const std::string& typed) {
  const std::string text = SPC_TRY(own_paths().resolve(typed));
  const auto colon = text.find(':');
  const std::string target = colon == std::string::npos ? text : text.substr(colon + 1);
  if (!target.starts_with('/'))
    return Error(ErrorKind::invalid,
                 formatted("--home: {} is not an absolute path", in_quotes(target)));
  return Words{"--mounts=" + text.substr(0, colon) + ":" + target, "--env=HOME=" + target};
}

/// Converts docker's --user.
Result<Words> user(const std::string& text) {
  const std::string name = text.substr(0, text.find(':'));
  if (name == "0" || name == "root") return Words{"--remap-root"};
  const char* own = std::getenv("USER");
  if (name == std::to_string(::geteuid()) || (own != nullptr && name == own)) return Words{};
  return Error(ErrorKind::invalid,
               formatted("--user {}: is not supported; containers run as the calling user",
                         in_quotes(name)))
      .hint("--remap-root makes the user root in the container");
}

/// Converts --group-add of docker and podman: the user keeps all own groups and gets no others.
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
      .hint("id lists your groups, all of which are kept");
}

/// Converts docker's --gpus. It cannot select GPUs: CUDA_VISIBLE_DEVICES does.
Result<Words> gpus(const std::string& text) {
  if (text == "all") return Words{"--gpu"};
  return Error(ErrorKind::invalid, formatted("--gpus: {} is not allowed", in_quotes(text)))
      .hint("--gpus=all --env=CUDA_VISIBLE_DEVICES=0,1");
}

/// Converts --cgroupns of podman and docker.
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
    {"-e", true, nullptr, nullptr, variable},
    {"--mount", true, nullptr, nullptr, mount},
    {"--tmpfs,--scratch,-S", true, nullptr, nullptr, tmpfs},
    {"--security-opt", true, nullptr, nullptr, security},
    {"--ipc,--pid,--uts,--userns", true, nullptr, nullptr, of_host},
    {"--runtime", true, nullptr, nullptr, runtime},
    {"--shm-size", true, nullptr, nullptr, nullptr, "/dev/shm is the host's, with its size"},
    {"--ulimit", true, nullptr, nullptr, nullptr,
     "limits are those of the caller: ulimit in the shell, or srun --propagate"},
    {"--cap-drop", true, nullptr, nullptr, nullptr, "containers have no capabilities"},
    {"--stop-signal,--stop-timeout,--log-driver,--log-opt,--label,-l,--attach,-a", true, nullptr,
     nullptr, nullptr, "no service keeps this container: nothing would read it"},
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
    {"--rm,--interactive,-i,-t,-it,-ti,--init,--compat,--no-privs,-U,--no-init,--no-eval,"
     "--no-umask,--no-nv,--no-rocm,--disable-cache,--no-healthcheck,--sig-proxy",
     false, nullptr},  // the default of scontainer
    {"--publish,-p", true, nullptr,
     "ports are the host's: a server in the container is reached at this machine's address"},
    {"--network,--net", true, nullptr,
     "the network is the host's; only a step of srun can have one of its own"},
    {"--hostname", true, nullptr,
     "the host name is this machine's; a step can have its own: srun --container-unshare=uts"},
    {"--add-host,--dns,--dns-search,--sysctl", true, nullptr,
     "names and kernel settings are this machine's: --mounts=./hosts:/etc/hosts"},
    {"--no-mount", true, nullptr, "--no-mount-home leaves the home directory out"},
    {"--overlay", true, nullptr,
     "--changes=DIR keeps what is written; --add-layer=FILE adds an image, read-only"},
    {"--privileged", false, nullptr,
     "--remap-root makes the user root in the container, without privileges outside"},
    {"--cap-add", true, nullptr,
     "--remap-root makes the user root in the container, without privileges outside"},
    {"--restart", true, nullptr, "sbatch --requeue restarts a job"},
    {"--memory,-m,--cpus", true, nullptr, "the job has the limits: srun --mem, --cpus-per-task"},
    {"--cleanenv", false, nullptr,
     "env -i COMMAND drops all variables; those of the image win anyway"},
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
    return Error(ErrorKind::invalid, name + " is not supported").hint(other.advice);
  if (other.note != nullptr)
    report_error(formatted("warning: {}: not needed: {}", name, other.note));
  Words instead;
  if (other.change != nullptr) instead = SPC_TRY(other.change(argument));
  if (other.ours != nullptr)
    instead.push_back(other.ours + (other.has_argument ? "=" + argument : ""));
  ours.insert(ours.end(), instead.begin(), instead.end());
  return {};
}

/// Returns whether the word behind --entrypoint is docker's value, a program, and not the image.
/// Some programs are also names of images; then an image must follow.
bool is_entrypoint(std::string_view word, std::span<const std::string> behind) {
  constexpr std::string_view kPrograms[] = {"",    "sh", "ash", "dash", "zsh",   "env",
                                            "cat", "ls", "id",  "true", "sleep", "echo"};
  constexpr std::string_view kAlsoImages[] = {"bash", "python", "python3", "perl", "node", "ruby"};
  if (std::ranges::find(kPrograms, word) != std::end(kPrograms) ||
      word.find("/bin/") != std::string_view::npos)
    return true;
  const auto next = std::ranges::find_if(behind, [](auto& one) { return !one.starts_with('-'); });
  return std::ranges::find(kAlsoImages, word) != std::end(kAlsoImages) && next != behind.end() &&
         next->find(':') != std::string::npos;
}

}  // namespace

Result<Words> in_our_words(std::span<const std::string> words, std::span<const OptionRow> rows) {
  Words ours;
  std::string entrypoint;  // docker's: the program instead of the image's
  std::size_t at = 0;
  for (; at < words.size() && words[at].starts_with('-') && words[at] != "--"; ++at) {
    const std::string& word = words[at];
    const auto equals = word.find('=');
    const std::string name = word.substr(0, equals);
    if (word.starts_with("--entrypoint=")) {
      entrypoint = word.substr(equals + 1);
      continue;
    }
    if (word == "--entrypoint" && at + 1 < words.size() &&
        is_entrypoint(words[at + 1], words.subspan(at + 2))) {
      entrypoint = words[++at];
      continue;
    }
    const auto row =
        std::ranges::find_if(rows, [&](const OptionRow& one) { return is_named(one.names, name); });
    const OtherWord* other = row == rows.end() ? find_other(name) : nullptr;
    const bool takes_next =
        equals == std::string::npos && at + 1 < words.size() &&
        (other != nullptr ? other->has_argument : row != rows.end() && row->takes_next());
    const std::string& argument = takes_next ? words[++at] : word;
    if (other == nullptr) {
      const bool has_no_value =
          row != rows.end() && row->may_omit_value && equals == std::string::npos;
      ours.push_back(has_no_value ? word + "=yes" : word);
      if (takes_next) ours.push_back(argument);
    } else {
      SPC_TRY(add_other(*other, name, takes_next ? argument : word.substr(equals + 1), ours));
    }
  }
  const auto image = ours.size() + (at < words.size() && words[at] == "--" ? 1 : 0);
  ours.insert(ours.end(), words.begin() + static_cast<std::ptrdiff_t>(at), words.end());
  if (!entrypoint.empty() && image < ours.size())
    ours.insert(ours.begin() + static_cast<std::ptrdiff_t>(image) + 1, entrypoint);
  return ours;
}

// --- foreign commands ---

namespace {

/// A command of docker, podman, Apptainer, enroot or a shell, and what to type instead.
struct OtherCommand {
  const char* names;
  const char* ours;
};
constexpr OtherCommand kOtherCommands[] = {
    {"ls,list,image", "scontainer images lists images"},
    {"ps,top,stats,container", "scontainer containers lists them"},
    {"rmi,remove,delete", "scontainer rm IMAGE"},
    {"search,library", "scontainer catalogue lists the images that the site recommends"},
    {"tag,copy", "scontainer push IMAGE NEW-NAME"},
    {"logs", "run --detach prints the name of the file with the output"},
    {"build,commit",
     "scontainer run --remap-root --changes=./DIR IMAGE COMMAND, "
     "scontainer export --changes=./DIR IMAGE FILE"},
    {"cp", "scontainer run --mounts=./DIR:/DST IMAGE cp -r /SRC /DST"},
    {"kill,pause", "scontainer stop CONTAINER"},
    {"create,start,restart,instance", "scontainer run --detach --name=NAME IMAGE COMMAND"},
    {"cache,clean,prune,system", "scontainer gc lists what can be removed"},
    {"save", "scontainer export IMAGE FILE"},
    {"load", "scontainer import FILE NAME"},
    {"history,manifest,sif,verify", "scontainer inspect IMAGE"},
    {"remote,registry", "scontainer login REGISTRY"},
    {"bash,sh", "scontainer shell IMAGE"},
    {"test,check", "scontainer doctor"},
    {"srun,submit,batch", "srun --container-image=IMAGE COMMAND"},
};

}  // namespace

std::string hint_for_command(std::string_view name) {
  for (const OtherCommand& other : kOtherCommands) {
    if (is_named(other.names, name)) return other.ours;
  }
  std::vector<std::string_view> known;
  for (const Command& command : command_table()) known.emplace_back(command.name);
  const std::string_view near = nearest(name, known);
  const bool is_near =
      !near.empty() && letters_between(name, near) < std::min<std::size_t>(3, name.size());
  return is_near ? formatted("did you mean {}?", near) : "scontainer --help lists them";
}

}  // namespace spc::tool
