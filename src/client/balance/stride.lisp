;;;; Picking by weight: the static stride scheduler of gRFC A58. Weights are scaled to 16 bits, so
;;;; that the largest is 65,535. The sequence of picks visits all entries again and again; in each
;;;; generation an entry is picked or skipped. Over 65,535 generations an entry is picked as many
;;;; times as its weight, spread evenly. Weights are limited to between a tenth of the mean and ten
;;;; times the mean.
;;;;
;;;; For example, of weights 65,535 and 21,845 the second is picked in each third generation.

(in-package #:clgrpc.balance)

(defconstant +most-weight+ 65535)
(defconstant +most-ratio+ 10
  "The largest factor by which a weight may differ from the mean, above or below.")

(deftype weights ()
  "Scaled weights."
  '(simple-array (unsigned-byte 16) (*)))

(defstruct (stride (:constructor make-stride (weights sequence)) (:copier nil))
  "A scheduler, with an entry for each weight."
  (weights nil :type weights)           ; the weight of each entry; the largest is +MOST-WEIGHT+
  (sequence 0 :type (unsigned-byte 62))) ; the sequence number of the next try

(declaim (sb-ext:freeze-type stride))

(defun scaled-weights (weights)
  "WEIGHTS, a vector of reals, scaled; 0 counts as the mean of the others. Nil if fewer than two
weights are above 0."
  (let* ((known (remove-if-not #'plusp weights))
         (count (length known)))
    (when (>= count 2)
      (let* ((mean (/ (reduce #'+ known) count))
             (most (min (reduce #'max known) (* +most-ratio+ mean)))
             (scale (/ +most-weight+ most))
             (scaled-mean (round (* mean scale)))
             (least (max 1 (round (/ (* mean scale) +most-ratio+)))))
        (map 'weights (lambda (weight)
                        (if (plusp weight)
                            (max least (min +most-weight+ (round (* weight scale))))
                            scaled-mean))
             weights)))))

(define-hot next-entry ((stride stride)) index
  "The index of the entry whose turn it is."
  (let* ((weights (stride-weights stride))
         (count (length weights)))
    (loop
      (let ((sequence (stride-sequence stride)))
        (setf (stride-sequence stride) (if (= sequence most-positive-fixnum) 0 (1+ sequence)))
        (multiple-value-bind (generation index) (floor sequence count)
          (let* ((weight (aref weights index))
                 ;; so entries of equal weight are not all skipped in the same generation
                 (offset (* index (ash +most-weight+ -1)))
                 (position (mod (+ (* weight (logand generation #xFFFFFFFFFF)) offset)
                                +most-weight+)))
            (declare (type (unsigned-byte 62) offset position))
            (when (>= position (- +most-weight+ weight))
              (return index))))))))
