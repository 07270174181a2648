/** Keys to press, with blanks between those that follow one another: "g t". */
export function KeyHint({ keys }: { keys: string }) {
  return (
    <span className="keys">
      {keys.split(" ").map((key) => (
        <kbd key={key}>{key}</kbd>
      ))}
    </span>
  )
}
