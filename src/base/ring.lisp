;;;; Rings: circular, doubly linked lists. A link is removed from its list without a search.

(in-package #:clgrpc.base)

(defstruct (ring (:constructor %make-ring) (:copier nil))
  "A link of a list, or the head of a list. A link that is in no list is its own neighbour on both
sides."
  (before nil :type (or null ring))     ; the link before it
  (after nil :type (or null ring)))     ; the link after it

(document-functions
  ring-p "True if the argument is a link of a list, or the head of a list.")

(defun isolate-ring (ring)
  "Make RING, a new ring, a list whose only link is RING itself; return RING."
  (setf (ring-before ring) ring
        (ring-after ring) ring))

(defun make-ring ()
  "Return the head of an empty list."
  (isolate-ring (%make-ring)))

(defun ring-first (head)
  "The first link of the list with HEAD, or nil if the list is empty."
  (let ((first (ring-after head)))
    (unless (eq first head) first)))

(defun ring-last (head)
  "The last link of the list with HEAD, or nil if the list is empty."
  (let ((last (ring-before head)))
    (unless (eq last head) last)))

(defun ring-list (head &optional (count most-positive-fixnum))
  "A new list of the links after HEAD, in order, at most COUNT of them."
  (loop for ring = (ring-after head) then (ring-after ring)
        until (eq ring head)
        repeat count
        collect ring))

(defun enter-ring (ring head)
  "Append RING, which must be in no list, to the list with HEAD."
  (let ((last (ring-before head)))
    (setf (ring-before ring) last
          (ring-after ring) head
          (ring-after last) ring
          (ring-before head) ring))
  nil)

(defun quit-ring (ring)
  "Remove RING from its list, if it is in a list."
  (setf (ring-after (ring-before ring)) (ring-after ring)
        (ring-before (ring-after ring)) (ring-before ring))
  (isolate-ring ring)
  nil)

(defmethod print-object ((ring ring) stream)
  (print-unreadable-object (ring stream :type t :identity t)))
