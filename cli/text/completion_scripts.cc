#include "cli/text/completion_scripts.h"

namespace coupler::cli {

const char kBashCompletion[] =
    R"script(# Completion of coupler for bash, as `coupler completion bash` prints it.
_coupler() {
  local line=${COMP_LINE:0:COMP_POINT} program current kept='' shown='' word
  local -a words
  # COMP_WORDS is also split at =. A backslash keeps a blank in its word.
  # shellcheck disable=SC2162
  read -a words <<< "$line"
  [[ $line == *[[:blank:]] && $line != *\\[[:blank:]] ]] && words+=('')
  program=${words[0]/#\~/$HOME}
  current=${words[${#words[@]} - 1]}
  [[ $current == *=* ]] && kept=${current%"${current##*=}"}
  # If bash does not split words at =, it replaces the whole word.
  [[ $COMP_WORDBREAKS == *=* ]] || shown=$kept
  COMPREPLY=()
  while IFS=$'\t' read -r word _; do
    case $word in
      :files | :folders)
        compopt -o filenames 2> /dev/null
        while read -r word; do
          COMPREPLY+=("$shown$word")
        done < <(if [[ $word == :files ]]; then compgen -f -- "${current#"$kept"}"; else compgen -d -- "${current#"$kept"}"; fi)
        ;;
      *=)
        compopt -o nospace 2> /dev/null
        COMPREPLY+=("$shown${word#"$kept"}")
        ;;
      *) COMPREPLY+=("$shown${word#"$kept"}") ;;
    esac
  done < <("$program" complete "${words[@]:1}" 2> /dev/null)
}
complete -F _coupler coupler
)script";

const char kZshCompletion[] = R"script(#compdef coupler
# Completion of coupler for zsh, as `coupler completion zsh` prints it.
_coupler() {
  local line word other='' kept=''
  local -a given full keys
  given=("${(@Q)words[2,CURRENT-1]}" "${(Q)PREFIX}")
  for line in "${(@f)$(${~words[1]} complete "${given[@]}" 2> /dev/null)}"; do
    word=${line%%$'\t'*}
    case $word in
      :files | :folders) other=$word ;;
      '') ;;
      *=) keys+=("${word//:/\\:}:${line#*$'\t'}") ;;
      *) full+=("${word//:/\\:}:${line#*$'\t'}") ;;
    esac
  done
  if [[ $PREFIX == *=* ]]; then
    kept=${PREFIX%"${PREFIX##*=}"}
    compset -P '*='
    keys=("${(@)keys#$kept}")
    full=("${(@)full#$kept}")
  fi
  local found=1
  (( $#full )) && _describe -t words 'coupler' full && found=0
  (( $#keys )) && _describe -t keys 'key' keys -S '' && found=0
  [[ $other == :files ]] && _files && found=0
  [[ $other == :folders ]] && _files -/ && found=0
  return found
}
if [[ $zsh_eval_context[-1] == loadautofunc ]]; then
  _coupler "$@"
else
  compdef _coupler coupler
fi
)script";

const char kFishCompletion[] =
    R"script(# Completion of coupler for fish, as `coupler completion fish` prints it.
function __coupler_complete
    set -l given (commandline -opc)
    set -l current (commandline -ct)
    set -l kept (string match -r -- '^.*=' "$current"; or echo)
    for line in ($given[1] complete $given[2..-1] "$current" 2>/dev/null)
        switch $line
            case ':files'
                printf '%s\n' $kept(__fish_complete_path (string replace -- "$kept" '' "$current"))
            case ':folders'
                printf '%s\n' $kept(__fish_complete_directories (string replace -- "$kept" '' "$current") '')
            case '*'
                printf '%s\n' $line
        end
    end
end
complete -c coupler -f -a '(__coupler_complete)'
)script";

}  // namespace coupler::cli
