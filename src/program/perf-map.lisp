;;;; The places of this image's functions in memory, for perf and `clgrpc profile`:
;;;; /tmp/perf-PID.map has lines of `ADDRESS OCTETS NAME`, the numbers in hexadecimal. Only the Lisp
;;;; image itself knows the names of its functions. A program of RUN-SERVER writes the table at
;;;; SIGIO, so a user who may send signals to the process can get the names of its functions.

(in-package #:clgrpc.program)

(defun map-functions (function)
  "Call FUNCTION with name, address and octets of each function of this image."
  (declare (type function function))
  (dolist (code (sb-vm::list-allocated-objects :all :type sb-vm:code-header-widetag))
    (let* ((start (sb-sys:sap-int (sb-kernel:code-instructions code)))
           (end (+ start (sb-kernel:%code-text-size code)))
           (count (sb-kernel:code-n-entries code)))
      (flet ((address (i)
               (- (sb-kernel:get-lisp-obj-address (sb-kernel:%code-entry-point code i))
                  sb-vm:fun-pointer-lowtag)))
        (cond ((eq code sb-fasl:*assembler-routines*)
               (map-assembler-routines function code end))
              ((zerop count)
               (funcall function (sb-kernel:%code-debug-info code) start (- end start)))
              (t (dotimes (i count)
                   (let ((from (if (zerop i) start (address i)))
                         (to (if (< (1+ i) count) (address (1+ i)) end)))
                     (funcall function
                              (sb-kernel:%simple-fun-name (sb-kernel:%code-entry-point code i))
                              from (- to from))))))))))

(defun map-assembler-routines (function code end)
  (let ((rows '())
        (start (sb-sys:sap-int (sb-kernel:code-instructions code))))
    (maphash (lambda (name place) (push (cons (+ start (first place)) name) rows))
             (sb-kernel:%code-debug-info code))
    (loop for ((address . name) . rest) on (sort rows #'< :key #'car)
          do (funcall function name address (- (if rest (caar rest) end) address)))))

(defun function-label (name)
  "NAME, of any form, in one line of lower case, with the packages of symbols except COMMON-LISP."
  (let ((*package* (find-package '#:common-lisp)) (*print-pretty* nil) (*print-length* 6)
        (*print-level* 4))
    (substitute #\Space #\Newline
                (if (stringp name)
                    (format nil "~S" name)
                    (string-downcase (handler-case (prin1-to-string name)
                                       (error () "?")))))))

(defun write-perf-map (&optional (path (format nil "/tmp/perf-~D.map" (sb-unix:unix-getpid))))
  "Write to PATH, a string, the place of each function of this image in the form that perf reads,
and return PATH. The table lacks functions that are compiled, or moved by a collection, later. From
any thread."
  ;; all users can write to the folder, so the file must be new and have a name that no user knows
  (let ((new (format nil "~A.~36R" path (random (expt 36 12) (make-random-state t)))))
    (with-open-file (stream new :direction :output :if-exists :error :external-format :utf-8)
      (map-functions (lambda (name address octets)
                       (format stream "~(~X ~X~) ~A~%" address octets (function-label name)))))
    (rename-file new (sb-ext:parse-native-namestring path)) ; so the file is never incomplete
    path))

(defun begin-perf-map ()
  "Write the table of this image, on a thread of its own; an error is logged."
  (sb-thread:make-thread (lambda ()
                           (loop:guarding (:perf-map-failed) (write-perf-map)))
                         :name "clgrpc perf map"))
