;;;; The manual as a site: the chapters of doc/, and a page for each subject with every public name,
;;;; made from docstrings. scripts/manual writes it into a folder that needs no server.

(defpackage #:clgrpc.manual
  (:use #:cl #:clgrpc.base #:clgrpc.option)
  (:import-from #:alexandria #:if-let #:when-let)
  (:local-nicknames (#:page #:clgrpc.page) (#:ppcre #:cl-ppcre))
  (:export
   ;; docstring.lisp
   #:docstring #:parse-docstring #:docstring-blocks #:docstring-values #:docstring-conditions
   #:docstring-threads #:docstring-sources
   ;; export.lisp
   #:entry #:entry-symbol #:entry-url #:entry-keywords #:collect-entries #:package-entries
   #:keyword-row #:keyword-row-name #:keyword-row-text
   ;; contents.lisp
   #:*subjects* #:*parts* #:subject #:subject-packages #:chapter-paths
   ;; manual.lisp
   #:write-manual))
