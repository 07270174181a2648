/** Keys to press; keys of a sequence are separated by blanks: "g t". */
export function KeyHint({ keys }: { keys: string }) {
  return (
    <span className="keys">
      {keys.split(" ").map((key) => (
        <kbd key={key}>{key}</kbd>
      ))}
    </span>
  )
}
