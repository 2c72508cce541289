# bash completion for scontainer. The script comes from the program, so that both always agree.
source <(scontainer completion bash)
