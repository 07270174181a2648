export default {
  title: "Placements",
}
