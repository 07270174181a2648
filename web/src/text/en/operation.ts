export default {
  title: "Operations",
}
