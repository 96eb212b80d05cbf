;;;; The page around tables and charts: its head, with the style, and its parts.

(in-package #:clgrpc.page)

(defmacro file-text (name)
  "The text of the file NAME in the same folder, as it was when this form was compiled."
  (uiop:read-file-string (merge-pathnames name (or *compile-file-truename* *load-truename*))
                         :external-format :utf-8))

(defparameter *style* (file-text "page.css") "The style of all pages.")

(defun write-page (stream title lead sections)
  "Write to STREAM a page in HTML without external resources, with TITLE, a string, LEAD, a node
that describes its subject, and SECTIONS, nodes such as CARD returns."
  (format stream "<!doctype html>~%<html lang=\"en\">~%<head>~%")
  (write-markup
   `((:meta (:charset "utf-8"))
     (:meta (:name "viewport" :content "width=device-width, initial-scale=1"))
     (:meta (:name "color-scheme" :content "light dark"))
     (:title () ,title)
     (:link (:rel "icon" :href "data:,")))
   stream)
  (format stream "~%<style>~%~A</style>~%</head>~%" *style*)
  (write-markup `(:body () (:header () (:h1 () ,title) (:p () ,lead)) (:main () ,@sections))
                stream)
  (format stream "~%</html>~%"))

(defun card (title nodes &key half note)
  "A section with TITLE, a string, around NODES. If HALF is true, the card takes half of the width
where the page is wide enough; NOTE, a node, is added below in small letters."
  `(:section (:class ,(if half "card half" "card"))
    (:h2 () ,title)
    ,@nodes
    ,(when note `(:p (:class "note") ,note))))

(defun tiles (entries)
  "A node with the most important figures in large type. ENTRIES are lists (NAME FIGURE [CLASS]) of
strings; the class is \"good\", \"warn\" or \"bad\"."
  `(:section (:class "tiles" :aria-label "Figures")
    (:dl ()
     ,@(loop for (name figure class) in entries
             collect `(:div () (:dt () ,name) (:dd (:class ,class) ,figure))))))

(defun facts (entries)
  "A node with a row of figures in small type. ENTRIES are lists (NAME FIGURE): a string and a
node."
  `(:dl (:class "facts")
    ,@(loop for (name figure) in entries
            collect `(:div () (:dt () ,name) (:dd () ,figure)))))

(defun table (columns rows &key label)
  "A table; LABEL is its name for readers who do not see it. COLUMNS are lists (TITLE . PROPERTIES):
:number aligns the column to the right, :text lets it break its lines, :wide leaves it out where the
page is narrow. ROWS are lists of cells, nodes or, with a class, lists (:cell CLASS . nodes)."
  (flet ((column-class (properties)
           (let ((names (loop for (property class) in '((:number "n") (:text "text") (:wide "wide"))
                              when (member property properties) collect class)))
             (and names (format nil "~{~A~^ ~}" names)))))
    `(:div (:class "scroll" :tabindex "0" :role "region" :aria-label ,(or label "Table"))
      (:table ()
       (:thead ()
        (:tr () ,@(loop for (title . properties) in columns
                        collect `(:th (:scope "col" :class ,(column-class properties)) ,title))))
       (:tbody ()
        ,@(loop for row in rows
                collect `(:tr ()
                          ,@(loop for cell in row
                                  for (nil . properties) in columns
                                  for class = (column-class properties)
                                  collect (if (and (consp cell) (eq :cell (first cell)))
                                              `(:td (:class ,(format nil "~@[~A ~]~A" class
                                                                     (second cell)))
                                                ,@(cddr cell))
                                              `(:td (:class ,class) ,cell))))))))))
