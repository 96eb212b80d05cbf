;;;; Reports as web pages: one file that loads nothing else, in the console's colours, with charts
;;;; as SVG. `clgrpc load` and `clgrpc profile` write their reports with these functions.

(defpackage #:clgrpc.page
  (:use #:cl #:clgrpc.base)
  (:export
   ;; figure-text.lisp
   #:digits-text #:count-text #:duration-text #:octets-text #:share-text
   #:number-tick #:octets-tick #:duration-tick #:seconds-tick
   ;; markup.lisp
   #:write-markup #:markup-text
   ;; scale.lisp
   #:scale #:linear-scale #:log-scale #:tail-scale #:scale-share #:scale-ticks
   ;; chart.lisp
   #:chart #:line-layer #:band-layer #:bar-layer #:cell-layer #:title-layer #:legend
   ;; page-head.lisp
   #:write-page #:tiles #:card #:table #:facts))
