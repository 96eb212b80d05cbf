;;;; The bench server with its symbols laid open: before it serves, it writes to the file that
;;;; CLGRPC_MAP names where each of its functions lies, a line `ADDRESS OCTETS NAME` in hexadecimal
;;;; for each. Loaded behind scripts/load.lisp by bench/profile.

(in-package #:clgrpc.scripts)

(load-strictly "clgrpc/tools")

(defpackage #:clgrpc.profile
  (:use #:cl)
  (:local-nicknames (#:tools #:clgrpc.tools)))

(in-package #:clgrpc.profile)

(defun map-functions (function)
  "Call FUNCTION with name, address and octets of each function in the heap."
  (dolist (code (sb-vm::list-allocated-objects :all :type sb-vm:code-header-widetag))
    (let* ((start (sb-sys:sap-int (sb-kernel:code-instructions code)))
           (end (+ start (sb-kernel:%code-text-size code)))
           (count (sb-kernel:code-n-entries code)))
      (flet ((address (i)
               (sb-kernel:get-lisp-obj-address (sb-kernel:%code-entry-point code i))))
        (if (zerop count)
            (funcall function (sb-kernel:%code-debug-info code) start (- end start))
            (dotimes (i count)
              (let ((from (if (zerop i) start (address i)))
                    (to (if (< (1+ i) count) (address (1+ i)) end)))
                (funcall function
                         (sb-kernel:%simple-fun-name (sb-kernel:%code-entry-point code i))
                         from (- to from)))))))))

(defun function-label (name)
  (let ((*package* (find-package '#:keyword)) (*print-pretty* nil))
    (substitute #\Space #\Newline (format nil "~(~S~)" name))))

(defun write-map (path)
  (with-open-file (stream path :direction :output :if-exists :supersede :external-format :utf-8)
    (map-functions (lambda (name address octets)
                     (format stream "~(~X ~X~) ~A~%" address octets (function-label name))))))

;; what has survived a full collection stays where it is while the server runs
(sb-ext:gc :full t)
(write-map (uiop:getenv "CLGRPC_MAP"))
(clgrpc.scripts:quit (tools:run-command '("serve" "bench" "--listen" "127.0.0.1:0")))
