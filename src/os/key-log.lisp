;;;; The log of TLS secrets (RFC 9850), with which Wireshark and other programs decrypt recorded
;;;; connections. The file is opened for each line: lines are few, and the file may be moved between
;;;; two of them. One writev writes a line and its newline, so that lines of several threads do not
;;;; mix.

(in-package #:clgrpc.os)

(declaim (type list **key-logs**))
(defglobal **key-logs** '())            ; from addresses of contexts to names of files; atomic

(defun forget-key-logs ()
  (setf **key-logs** '()))

(pushnew 'forget-key-logs sb-ext:*save-hooks*)

(defconstant +key-log-mode+ #o600 "The permissions of a key log: only its owner may read it.")

(defun write-line-of-c (descriptor line)
  "Write LINE, the address of a C string, and a newline to DESCRIPTOR."
  (with-alien ((parts (array (unsigned 64) 4)) (end (unsigned 8) 10))
    (setf (deref parts 0) line
          (deref parts 1) (loop for i of-type (unsigned-byte 16) from 0 below 4096
                                until (zerop (sb-sys:sap-ref-8 (int-sap line) i))
                                finally (return i))
          (deref parts 2) (sap-int (sb-alien:alien-sap (addr end)))
          (deref parts 3) 1)
    (alien-funcall (extern-alien "writev" (function long int system-area-pointer int))
                   descriptor (sb-alien:alien-sap parts) 2)))

(define-callable log-secret void ((ssl (unsigned 64)) (line (unsigned 64)))
  (let ((entry (assoc (ssl-get-context ssl) **key-logs**)))
    (when entry
      (let ((descriptor (open-to-append (cdr entry) +key-log-mode+)))
        (unless (failed-p descriptor)
          (write-line-of-c descriptor line)
          (close-descriptor descriptor)))))
  (values))

(defun log-secrets (context file)
  "Append the secrets of CONTEXT's sessions to FILE, a native name, which only its owner may read.
Signal TLS-ERROR if FILE cannot be opened."
  (let* ((name (string-octets file))
         (descriptor (open-to-append name +key-log-mode+)))
    (when (failed-p descriptor)
      (tls-error "The key log ~A cannot be opened: ~A." file (errno-text descriptor)))
    (close-descriptor descriptor)
    (sb-ext:atomic-push (cons context name) (symbol-value '**key-logs**))
    (ssl-ctx-set-keylog context (callable-address 'log-secret))))

(defun end-key-log (context)
  "End the key log of CONTEXT, which is about to be freed."
  (loop for old = **key-logs**
        until (eq old (sb-ext:compare-and-swap (symbol-value '**key-logs**) old
                                               (remove context old :key #'car)))))
