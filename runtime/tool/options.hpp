#pragma once

#include <array>

#include "tool/command.hpp"

// Options and the further text of each command's help.

namespace spc {

inline constexpr std::array<OptionRow, 0> kNoOptions{};

inline constexpr OptionRow kPullOptions[] = {
    {"--platform", "OS/ARCH[/VARIANT]", "take the image for another machine than this one"},
    {"--pull", "newer|missing|always|never", "when the registry is asked about an image that is there"},
    {"-q,--quiet", nullptr, "print nothing but the digest"},
};
inline constexpr char kPullHelp[] =
    "An ordinary user's images go to ~/.local/share/spank-container, root's to the node's store.\n"
    "The digest of each image is printed.\n\n"
    "examples:\n"
    "  scontainer pull debian:12\n"
    "  scontainer pull registry.example.org/team/app:1.4 nvcr.io/nvidia/pytorch:24.03-py3\n"
    "  scontainer pull --platform=linux/arm64 debian:12\n";

inline constexpr OptionRow kImagesOptions[] = {
    {"--json", nullptr, "print JSON"},
};
inline constexpr char kImagesHelp[] =
    "STORE is \"own\" for your images and \"site\" for those of this node, of which only the public ones are shown.\n";

inline constexpr OptionRow kInspectOptions[] = {
    {"--json", nullptr, "print JSON"},
};
inline constexpr char kInspectHelp[] =
    "IMAGE is a name, or the beginning of a digest. Shows settings, layers, and the versions of what matters for jobs,\n"
    "as far as the files of the image tell: operating system, libc, CUDA, MPI, PMIx, UCX, NCCL. Nothing of the image is run.\n\n"
    "examples:\n"
    "  scontainer inspect nvcr.io/nvidia/pytorch:24.03-py3\n"
    "  scontainer inspect --json debian:12 | jq .facts.os\n";

inline constexpr OptionRow kRmOptions[] = {
    {"-f,--force", nullptr, "an image that is not there is no error"},
};
inline constexpr char kRmHelp[] =
    "IMAGE is a name, or the beginning of a digest, which stands for all its names.\n"
    "Layers that another image has or that a container is using stay.\n";

inline constexpr OptionRow kGcOptions[] = {
    {"-y,--yes", nullptr, "do it; without this, it is only said what would be done"},
    {"--json", nullptr, "print JSON"},
};
inline constexpr char kGcHelp[] =
    "Removes layers that no image has any more, and images that lack layers. What is in use stays.\n";

inline constexpr OptionRow kInfoOptions[] = {
    {"--json", nullptr, "print JSON"},
};

inline constexpr OptionRow kDoctorOptions[] = {
    {"--json", nullptr, "print JSON"},
    {"--registry", "HOST[:PORT]", "the registry to be reached, instead of the default one"},
};
inline constexpr char kDoctorHelp[] =
    "One line for each check: ok, warning (something is missing that not everybody needs) or failed, with the cure.\n"
    "The exit status is 1 if a check failed.\n";

inline constexpr char kCompletionHelp[] =
    "SHELL is bash.\n\n"
    "examples:\n"
    "  source <(scontainer completion bash)\n"
    "  scontainer completion bash > ~/.local/share/bash-completion/completions/scontainer\n";

}  // namespace spc
