export default {
  title: "Objects",
}
