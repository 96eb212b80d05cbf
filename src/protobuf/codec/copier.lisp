;;;; Copying messages. A COPIER, made once for each layout, copies the structure and then only those
;;;; places whose contents must be copied too: sub-messages, vectors, maps. So a message of numbers
;;;; and strings takes one allocation. Strings are never changed in place and are shared.

(in-package #:clgrpc.protobuf)

(define-hot copy-value (value) t
  "A copy of VALUE, the stored value of a slot."
  (typecase value
    (octets (if (zerop (length value)) value (subseq-octets value 0 (length value))))
    (message (copy-message value))
    (string value)
    (simple-vector (map 'simple-vector #'copy-value value))
    (vector (copy-seq value))
    (proto-map (copy-map value))
    (t value)))

(defun copy-map (map)
  (merge-map (make-proto-map (proto-map-key-kind map) (proto-map-value-kind map)
                             (proto-map-value-type map))
             map))

(defun merge-map (target source)
  "Put copies of the entries of the map SOURCE into TARGET and return it."
  (do-map ((key value) source target)
    (map-put target key (copy-value value))))

(defun copy-extras (extras)
  (make-extras (extras-unknown extras)
               (loop for (slot . stored) in (extras-entries extras)
                     collect (cons slot (copy-value stored)))
               (extras-epoch extras)))

(define-hot (shallow-copy :inline t) ((message message)) message
  "A copy of MESSAGE that shares the values of all fields with it."
  (let ((copy (truly-the message (copy-structure message))))
    (when (extras-p (message-extra copy))
      (setf (message-extra copy) (copy-extras (message-extra copy))))
    copy))

(defun deep-places (slots)
  "The places of SLOTS whose content COPY-VALUE must copy."
  (remove-duplicates
   (loop for slot across slots
         unless (and (eq :singular (slot-label slot))
                     (not (member (slot-kind slot) '(:message :bytes))))
           collect (if (slot-oneof slot)
                       (oneof-slot-value (slot-oneof slot))
                       (slot-place slot)))))

(defun structure-copier (slots)
  "Return a function that copies messages whose layout has SLOTS. These messages are structures; see
NOTE-PLACES."
  (let ((indices (map 'simple-vector (lambda (place) (car (get place 'place)))
                      (deep-places slots))))
    (if (zerop (length indices))
        #'shallow-copy
        (lambda (message)
          (let ((copy (shallow-copy (the message message))))
            (loop for index of-type index across indices
                  do (when-let ((value (sb-kernel:%instance-ref copy index)))
                       (setf (sb-kernel:%instance-ref copy index) (copy-value value))))
            copy)))))

(defun dynamic-copier (slots)
  "Return what STRUCTURE-COPIER returns, but for dynamic messages."
  (let ((places (deep-places slots)))
    (lambda (message)
      (let* ((copy (shallow-copy message))
             (contents (copy-seq (dynamic-contents copy))))
        (dolist (place places)
          (setf (svref contents place) (copy-value (svref contents place))))
        (setf (dynamic-contents copy) contents)
        copy))))

(define-hot copy-message ((message message)) message
  "Return a copy of MESSAGE. The copy shares only strings, which are never changed in place, and the
octets of unknown fields with MESSAGE. From any thread, while no other thread changes MESSAGE."
  (loop
    (let ((layout (message-layout message)))
      (when (and (eq layout (message-type-layout (truly-the message-type (layout-type layout))))
                 (not (message-p (message-extra message))))
        (return (truly-the message (funcall (layout-copier layout) message))))
      (setf message (current message)))))
