;;;; Entrances: ways into a server besides its listeners, such as the in-process one, which is a
;;;; folder above this. A server tells them when it stops and waits for them as for its connections.

(in-package #:clgrpc.server)

(defgeneric entrance-address (entrance)
  (:documentation "The address that clients of ENTRANCE give, a string, or nil if it has none."))

(defgeneric close-entrance (entrance)
  (:documentation "Have ENTRANCE begin no more calls."))

(defgeneric entrance-busy-p (entrance)
  (:documentation "True if calls that came by ENTRANCE are under way. When the last of them ends
after CLOSE-ENTRANCE, NOTE-EMPTIED is called."))

(defgeneric abandon-entrance (entrance status text)
  (:documentation "End the calls that came by ENTRANCE with STATUS and TEXT."))

(defgeneric entrance-calls (entrance)
  (:documentation "How many calls that came by ENTRANCE have ended."))

(defun ensure-entrance (server predicate make)
  "The entrance of SERVER for which PREDICATE is true; if there is none, what MAKE returns."
  (flet ((find-entrance () (find-if predicate (server-entrances server))))
    (or (find-entrance)
        (sb-thread:with-mutex ((server-lock server))
          (or (find-entrance)
              (first (push (funcall make) (server-entrances server))))))))

(defun note-emptied (server)
  "Calls or connections of SERVER, which stops, have ended."
  (sb-thread:with-mutex ((server-lock server))
    (sb-thread:condition-broadcast (server-emptied server))))
