# fish completion for scontainer and Slurm's commands. The script comes from the program, so that
# both always agree.
functions -q __scontainer
or scontainer completion fish | source
