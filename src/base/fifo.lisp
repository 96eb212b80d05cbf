;;;; A plain queue, for one thread at a time: first in, first out.
;;;;
;;;; A cell that has left the queue does not refer to the cells after it. Otherwise such a cell,
;;;; once in the old generation, would keep all later cells alive until SBCL collects that
;;;; generation.

(in-package #:clgrpc.base)

(defstruct (fifo (:copier nil))
  "A queue of items, the oldest first."
  (items '() :type list)                ; the items, oldest first
  (tail '() :type list))                ; the last cell of ITEMS

(declaim (sb-ext:freeze-type fifo))

(document-functions
  make-fifo "Return an empty queue."
  fifo-items "The list of the items in FIFO, oldest first. The list is a part of FIFO; do not change
it.")

(define-printer (fifo fifo)
  "~D items" (length (fifo-items fifo)))

(defun enqueue (item fifo)
  "Append ITEM to FIFO."
  (let ((cell (list item)))
    (if (fifo-items fifo)
        (setf (cdr (fifo-tail fifo)) cell)
        (setf (fifo-items fifo) cell))
    (setf (fifo-tail fifo) cell)
    nil))

(defun enqueue-first (item fifo)
  "Insert ITEM into FIFO before all other items."
  (push item (fifo-items fifo))
  (unless (rest (fifo-items fifo)) (setf (fifo-tail fifo) (fifo-items fifo)))
  nil)

(defun enqueue-in-order (item fifo before-p)
  "Insert ITEM into FIFO at its place in the order, after items that are equal in this order.
BEFORE-P, a function of two items, defines the order; the items of FIFO must already be in this
order."
  (declare (type function before-p))
  (let ((items (fifo-items fifo)))
    (cond ((not (and items (funcall before-p item (first (fifo-tail fifo)))))
           (enqueue item fifo))
          ((funcall before-p item (first items))
           (enqueue-first item fifo))
          (t (push item (rest (loop for cell on items
                                    when (funcall before-p item (second cell)) return cell)))
             nil))))

(defun dequeue (fifo)
  "Remove the oldest item from FIFO and return it. Return nil if FIFO is empty."
  (let ((cell (fifo-items fifo)))
    (when cell
      (setf (fifo-items fifo) (shiftf (cdr cell) '()))
      (unless (fifo-items fifo) (setf (fifo-tail fifo) '()))
      (car cell))))

(defun remove-from-fifo (item fifo)
  "Remove ITEM from FIFO if FIFO has it."
  (let ((items (delete item (fifo-items fifo) :test #'eq)))
    (setf (fifo-items fifo) items
          (fifo-tail fifo) (last items))
    nil))

(defun clear-fifo (fifo)
  "Empty FIFO; return the list of its items, oldest first."
  (setf (fifo-tail fifo) '())
  (shiftf (fifo-items fifo) '()))
