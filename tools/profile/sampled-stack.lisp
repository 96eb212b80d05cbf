;;;; Stacks of SBCL's own profiler, where there is no perf: a line for each stack, `COUNT THREAD
;;;; FRAME …` with tabs between, the frames innermost first. The kernel is seen by the C library's
;;;; functions that call it. The same profiler samples allocation: a stack for each region of memory
;;;; that a thread is given, 32 KB as a rule. Pure functions of a stream.

(in-package #:clgrpc.profile)

(defparameter *foreign-prefix* "foreign function " "The prefix of names of C's functions.")

(defun label-frame (label table)
  "The FRAME with the LABEL that SBCL's profiler gives it, from TABLE."
  (or (gethash label table)
      (setf (gethash label table)
            (cond ((string= label "") **unknown-frame**)
                  ((uiop:string-prefix-p *foreign-prefix* label)
                   (make-native-frame (subseq label (length *foreign-prefix*)) "clgrpc"))
                  (t (make-lisp-frame label))))))

(defun sum-stacks (stream &optional (part #'identity))
  "The SUMS of the stacks in STREAM; of each stack only the frames that PART returns count. Threads
are known by their names."
  (let ((sums (make-sums)) (frames (make-hash-table :test 'equal)))
    (loop for line = (read-line stream nil)
          while line
          do (destructuring-bind (count thread &rest labels)
                 (uiop:split-string line :separator '(#\Tab))
               (add-sample sums thread
                           (funcall part (mapcar (lambda (label) (label-frame label frames))
                                                 labels))
                           (parse-integer count))))
    sums))

(defun file-stacks (path)
  (with-open-file (stream path :external-format :utf-8)
    (sum-stacks stream)))

;;; The code that has requested memory

(defun allocator (frames)
  "That frame among FRAMES, innermost first, that has requested memory: the innermost frame of a
Lisp function that does not belong to SBCL's allocator."
  (find-if (lambda (frame)
             (and (eq :lisp (frame-kind frame))
                  (not (equal "allocation" (frame-area frame)))))
           frames))

(defun sum-allocation (stream)
  "SUMS of the stacks of allocations in STREAM, each without the frames of SBCL's runtime."
  (sum-stacks stream (lambda (stack) (or (member (allocator stack) stack) stack))))
