export default {
  title: "Why",
}
