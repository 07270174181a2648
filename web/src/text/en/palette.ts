export default {
  title: "Commands",
}
