;;;; Required fields (protobuf.dev, "Language Guide (proto 2)"): whether a message lacks one, itself
;;;; or in a message inside it. **EPOCH** identifies a state of all definitions; for each state, the
;;;; types that must be checked are found once.

(in-package #:clgrpc.protobuf)

(defun find-requirement (type)
  "True if messages of TYPE may lack a required field, themselves or in a message inside. Types may
come from peers and be nested deeply, so the function does not recur."
  (let ((seen (make-hash-table :test 'eq)) (open (list type)))
    (flet ((see-slot (slot)
             (let ((slot (or (slot-entry-value slot) slot)))
               (when (slot-required-p slot) (return-from find-requirement t))
               (when (eq :message (slot-kind slot)) (push (slot-type-object slot) open)))))
      (loop while open
            do (let ((type (pop open)))
                 (unless (gethash type seen)
                   (setf (gethash type seen) t)
                   (let ((layout (message-type-layout type)) (table (message-type-extensions type)))
                     (when layout (map nil #'see-slot (layout-slots layout)))
                     (when table
                       (loop for slot being the hash-values of table do (see-slot slot))))))))))

(defun look-for-requirement (type)
  (let ((epoch **epoch**)
        (needed (find-requirement type)))
    (setf (message-type-requirement type) (+ (* 2 epoch) (if needed 1 0)))
    needed))

(declaim (inline needs-check-p check-required))
(defun needs-check-p (type)
  "True if messages of TYPE may lack a required field, themselves or deeper."
  (declare (type message-type type))
  (let ((known (message-type-requirement type)) (none (truly-the fixnum (* 2 **epoch**))))
    (cond ((= known none) nil)
          ((= known (1+ none)) t)
          (t (look-for-requirement type)))))

(defun missing-path (message)
  "Return the path from MESSAGE to a required field that is missing, or nil if none is missing."
  (let* ((message (current message)) (layout (message-layout message))
         (table (message-type-extensions (layout-type layout))))
    (flet ((below (slot)
             (let ((value (or (slot-entry-value slot) slot)))
               (and (eq :message (slot-kind value))
                    (needs-check-p (slot-type-object value))
                    (missing-below message slot)))))
      (or (loop for slot across (layout-slots layout)
                  thereis (if (and (slot-required-p slot) (not (slot-present-p message slot)))
                              (slot-path slot)
                              (and (slot-present-p message slot) (below slot))))
          (and table (some #'below (remove :extension (present-slots message)
                                           :key #'slot-presence :test-not #'eq)))))))

(defun missing-below (message slot)
  "Return the path from MESSAGE through SLOT, which is present in MESSAGE, to a required field that
is missing, or nil if none is missing."
  (let ((value (slot-user-value message slot)))
    (flet ((path (message control &rest arguments)
             (let ((path (missing-path message)))
               (and path (format nil "~A~?.~A" (slot-path slot) control arguments path)))))
      (ecase (slot-label slot)
        (:singular (path value ""))
        (:repeated (loop for message across value
                         for i from 0 thereis (path message "[~D]" i)))
        (:map (do-map ((key message) value nil)
                (let ((path (path message "~A" (with-output-to-string (out) (write-key key out)))))
                  (when path (return path)))))))))

(defun need-required (message)
  (when-let ((path (missing-path message)))
    (error 'required-field-missing :path path
                                   :type (message-type-name (message-type-of message)))))

(defun check-required (type message)
  "Signal REQUIRED-FIELD-MISSING if MESSAGE, of TYPE, or a message inside it lacks a required
field."
  (when (needs-check-p type) (need-required message)))
