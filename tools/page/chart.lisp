;;;; Charts as SVG. A chart has an axis across and one upwards, and layers between them. Horizontal
;;;; positions are shares of the width, while texts and heights keep their size: a chart is as
;;;; readable at 400 pixels as at 1280. A chart also has a description in words, for readers who do
;;;; not see it; a layer of titles shows figures at the pointer.
;;;;
;;;; The parts that move with the width are drawn 1000 units wide; the browser stretches them,
;;;; except the width of lines.

(in-package #:clgrpc.page)

(defparameter *data-width* 1000 "The width of those parts of a chart that stretch with the page, in
units of their SVG.")

(defun per-cent (share)
  "The text of an attribute for SHARE, a fraction of the width, in per cent."
  (format nil "~A%" (with-output-to-string (stream) (write-number (* 100 share) stream))))

(defun data-x (x value)
  (* *data-width* (scale-share x value)))

(defun data-y (y value height)
  "The distance in pixels between the top of a chart, which is HEIGHT pixels high, and VALUE on the
scale Y."
  (* height (- 1 (scale-share y value))))

(defun tick-anchor (share)
  "The alignment of the text of a tick at SHARE of the width, so that it stays within the chart."
  (if (> share 0.97) "end" "middle"))

(defun many-ticks-p (scale)
  "True if SCALE has too many ticks for a narrow page, on which every second tick is then omitted."
  (< 5 (length (scale-ticks scale))))

(defun axis-nodes (x y height)
  "The nodes for the axes X and Y, each of which is a scale or nil."
  (list
   (when y
     `(:g (:class "axis")
       ,@(loop for (share . text) in (scale-ticks y)
               for level = (* height (- 1 share))
               collect `(:line (:x1 "0" :x2 "100%" :y1 ,level :y2 ,level))
               collect `(:text (:x "-8" :y ,(+ 4 level) :text-anchor "end") ,text))))
   (when x
     `(:g (:class "axis")
       ,@(loop for (share . text) in (scale-ticks x)
               for odd = nil then (not odd)
               collect `(:text (:x ,(per-cent share) :y ,(+ height 18)
                                :class ,(and odd (many-ticks-p x) "odd many")
                                :text-anchor ,(tick-anchor share))
                         ,text))))))

(defun chart (label layers &key x y (height 180) class)
  "A node for a chart, HEIGHT pixels high. LABEL describes the chart in words. LAYERS are functions,
such as LINE-LAYER returns, that make nodes for a height. X and Y are the scales of the axes; nil
means no axis. CLASS is a further class for the style."
  `(:svg (:class ,(format nil "chart~@[ ~A~]" class) :role "img" :aria-label ,label
          :height ,height)
    ,(axis-nodes x y height)
    (:svg (:class "data" :width "100%" :height ,height :|preserveAspectRatio| "none"
           :|viewBox| ,(format nil "0 0 ~D ~D" *data-width* height))
     ,@(loop for layer in layers collect (funcall layer height)))))

(defun path-text (points close)
  "The description of a path through POINTS, conses (x . y). A point that is nil interrupts it. If
CLOSE, a y coordinate, is given, the path is closed along that line."
  (with-output-to-string (stream)
    (let ((runs '()) (run '()))
      (dolist (point points)
        (cond (point (push point run))
              (run (push (nreverse run) runs) (setf run '()))))
      (when run (push (nreverse run) runs))
      (flet ((write-point (command x y)
               (write-char command stream)
               (write-number x stream)
               (write-char #\Space stream)
               (write-number y stream)))
        (dolist (run (nreverse runs))
          (loop for ((x . y) . more) on run
                for command = #\M then #\L
                do (write-point command x y)
                   (when (and close (null more))
                     (write-point #\L x close)
                     (write-point #\L (car (first run)) close)
                     (write-char #\Z stream)))
          ;; a single point becomes a dot
          (unless (or close (rest run))
            (write-point #\L (+ 0.01 (car (first run))) (cdr (first run)))))))))

(defun data-points (points x y height)
  (loop for point in points
        collect (and point (cdr point)
                     (cons (data-x x (car point)) (data-y y (cdr point) height)))))

(defun line-layer (points x y class)
  "A layer with a line through POINTS, conses of values on the scales X and Y. A point that is nil,
or whose second value is nil, interrupts the line."
  (lambda (height)
    `(:path (:class ,(format nil "line ~A" class)
             :d ,(path-text (data-points points x y height) nil)))))

(defun band-layer (points x y class)
  "A layer as LINE-LAYER returns it, with the area below the line filled."
  (lambda (height)
    `(:path (:class ,(format nil "band ~A" class)
             :d ,(path-text (data-points points x y height) height)))))

(defun bar-layer (bars x y class)
  "A layer with BARS, lists (FROM TO VALUE TITLE): from FROM to TO on the scale X, as high as VALUE
on Y."
  (lambda (height)
    `(:g (:class ,(format nil "bars ~A" class))
      ,@(loop for (from to value title) in bars
              for left = (data-x x from)
              for top = (data-y y value height)
              when (plusp value)
                collect `(:rect (:x ,left :width ,(max 0.5 (- (data-x x to) left)) :y ,top
                                 :height ,(max 1 (- height top)))
                          (:title () ,title))))))

(defun cell-layer (cells x y)
  "A layer of a heat map. CELLS are lists (LEFT RIGHT LOW HIGH WEIGHT TITLE): a rectangle from LEFT
to RIGHT on the scale X and from LOW to HIGH on Y. WEIGHT, from 0 to 1, determines its colour."
  (lambda (height)
    `(:g (:class "cells")
      ,@(loop for (left right low high weight title) in cells
              for from = (data-x x left)
              for top = (data-y y high height)
              collect `(:rect (:x ,from :width ,(- (data-x x right) from) :y ,top
                               :height ,(- (data-y y low height) top)
                               :class ,(format nil "h~D" (min 9 (floor (* 10 weight)))))
                        (:title () ,title))))))

(defun title-layer (columns x)
  "An invisible layer. COLUMNS are lists (LEFT RIGHT TITLE): while the pointer is between LEFT and
RIGHT on the scale X, the browser shows TITLE."
  (lambda (height)
    `(:g (:class "titles")
      ,@(loop for (left right title) in columns
              for from = (data-x x left)
              collect `(:rect (:x ,from :width ,(- (data-x x right) from) :y 0 :height ,height)
                        (:title () ,title))))))

(defun legend (&rest entries)
  "A legend of the colours: ENTRIES are conses (CLASS . TEXT)."
  `(:p (:class "legend")
    ,@(loop for (class . text) in entries
            collect `(:span () (:i (:class ,(format nil "key ~A" class))) ,text))))
