# Completes the names of sparkdeploy in bash.
_sparkdeploy() {
  local own candidate
  COMPREPLY=()
  {
    IFS= read -r own
    while IFS= read -r candidate; do COMPREPLY+=("${candidate%%$'\t'*}"); done
  } < <("${1/#~\//$HOME/}" __complete line "${COMP_LINE:0:COMP_POINT}" "$COMP_WORDBREAKS" 2>/dev/null)
  case "$own" in
    files) compopt -o default ;;
    folders) compopt -o dirnames ;;
  esac
  # A value follows at once.
  if [ "${#COMPREPLY[@]}" -eq 1 ] && [ "${COMPREPLY[0]%=}" != "${COMPREPLY[0]}" ]; then
    compopt -o nospace
  fi
}
complete -F _sparkdeploy sparkdeploy
