;;;; Ranges of the octets that a message is read from: those of unknown fields that are kept, and of
;;;; sub-messages that are read later. A list of ranges, (start . end), has the latest first.

(in-package #:clgrpc.protobuf)

(define-hot note-range ((ranges list) (start index) (end index)) list
  "Return RANGES, the latest first, with START to END added. A range that directly follows the
latest range extends it."
  (if (and ranges (consp (first ranges)) (eql start (cdr (first ranges))))
      (setf (cdr (first ranges)) end)
      (push (cons start end) ranges))
  ranges)

(defun gather-ranges (octets ranges)
  "Return the octets of RANGES, ranges of OCTETS, joined. The latest range comes first in RANGES; a
range may also be an octet vector."
  (declare (type octets octets))
  (let* ((ranges (reverse ranges))
         (size (loop for range in ranges
                     sum (if (consp range) (- (cdr range) (car range)) (length range))
                       of-type index))
         (all (make-array size :element-type 'octet))
         (at 0))
    (declare (type index at))
    (dolist (range ranges all)
      (setf at (if (consp range)
                   (copy-octets octets (car range) (cdr range) all at)
                   (copy-octets range 0 (length range) all at))))))

(defun read-pieces (type octets pieces reading)
  "Read the message of TYPE whose pieces are the ranges PIECES of OCTETS, of which the latest comes
first."
  (declare (type message-type type) (type octets octets))
  (let ((reader (message-type-reader type)))
    (if (null (rest pieces))
        (funcall reader octets (car (first pieces)) (cdr (first pieces)) reading)
        (let ((all (gather-ranges octets pieces)))
          (loop for (at . end) in pieces ; no field goes from one piece into the next
                do (loop while (< at end) do (setf at (skip-any-field octets at end))))
          (funcall reader all 0 (length all) reading)))))
