;;;; SETTINGS (RFC 9113 section 6.5), ours and the peer's. Each parameter is declared once with its
;;;; range and the error for other values; unknown parameters are ignored (6.5.2). The peer's
;;;; SETTINGS are applied and acknowledged at once. Ours are in force, where that matters, once the
;;;; peer has acknowledged them.

(in-package #:clgrpc.http2)

(defmacro define-settings (&body rows)
  "Define from ROWS of the form (name number minimum maximum error) the constants +SETTING-NAME+ and
SETTING-ERROR."
  `(progn
     ,@(loop for (name number) in rows
             collect `(defconstant ,(constant-name (format nil "SETTING-~A" name)) ,number))
     (defun setting-error (name value)
       "Return the error code if VALUE is not allowed for the parameter NAME, a number, else NIL."
       (case name
         ,@(loop for (nil number minimum maximum error) in rows
                 when error
                   collect `(,number (if (<= ,minimum value ,maximum)
                                         nil
                                         ,(constant-name error))))))))

(define-settings
  (header-table-size 1 0 #xFFFFFFFF nil)
  (enable-push 2 0 1 protocol-error)
  (max-concurrent-streams 3 0 #xFFFFFFFF nil)
  (initial-window-size 4 0 #x7FFFFFFF flow-control-error)
  (max-frame-size 5 16384 16777215 protocol-error)
  (max-header-list-size 6 0 #xFFFFFFFF nil))

;;; Ours

(defun our-settings (connection)
  "Return the parameters to send, as a list of (name . value), without parameters that have the
default of RFC 9113."
  (let ((options (connection-options connection)))
    (remove nil
            (list (if (connection-server-p connection)
                      (cons +setting-max-concurrent-streams+
                            (options-max-concurrent-streams options))
                      (cons +setting-enable-push+ 0))
                  (cons +setting-max-header-list-size+ (options-max-header-list-octets options))
                  (unless (= +default-window+ (options-stream-window-octets options))
                    (cons +setting-initial-window-size+ (options-stream-window-octets options)))
                  (unless (= +default-frame-octets+ (options-max-frame-octets options))
                    (cons +setting-max-frame-size+ (options-max-frame-octets options)))
                  (unless (= +default-table-octets+ (options-header-table-octets options))
                    (cons +setting-header-table-size+ (options-header-table-octets options)))))))

(defun emit-settings (connection)
  (let* ((settings (our-settings connection))
         (length (* +setting-octets+ (length settings)))
         (buffer (output-buffer connection))
         (octets (ensure-buffer-room buffer (+ +frame-header-octets+ length)))
         (at (write-frame-header octets (buffer-end buffer) length +frame-settings+ 0 0)))
    (loop for (name . value) in settings
          do (setf (setting-name octets at) name
                   (setting-value octets at) value)
             (incf at +setting-octets+))
    (setf (buffer-end buffer) at)))

(defun settings-acknowledged (connection)
  "Note that the peer has seen our SETTINGS. A smaller HPACK table is in force for the octets that
follow (RFC 7541 4.2)."
  (setf (connection-settings-deadline connection) 0)
  (hpack:set-decoder-limit (connection-decoder connection)
                           (options-header-table-octets (connection-options connection))))

(define-hot emit-settings-ack ((connection connection)) null
  (note-control-frame connection)
  (unless (connection-closed-p connection)
    (let ((buffer (output-buffer connection)))
      (ensure-buffer-room buffer +frame-header-octets+)
      (setf (buffer-end buffer)
            (write-frame-header (buffer-octets buffer) (buffer-end buffer)
                                0 +frame-settings+ +flag-ack+ 0))))
  nil)

;;; The peer's

(defun apply-setting (connection name value)
  (let ((error (setting-error name value)))
    (cond (error
           (fail-connection connection error (format nil "setting ~D of ~D" name value)))
          ((= name +setting-header-table-size+)
           (hpack:set-encoder-limit (connection-encoder connection) value))
          ((= name +setting-enable-push+)
           (when (and (= value 1) (not (connection-server-p connection)))
             (fail-connection connection +protocol-error+ "a server cannot enable push")))
          ((= name +setting-max-concurrent-streams+)
           (setf (connection-peer-max-streams connection) value))
          ((= name +setting-max-frame-size+)
           (setf (connection-peer-frame-octets connection) value))
          ((= name +setting-max-header-list-size+)
           (setf (connection-peer-max-header-list connection) value)))))

(defun apply-settings (connection octets start end)
  "Apply the peer's parameters from START to END in order, until one is an error. If there are
several initial window sizes, only the highest and the last are applied."
  (let ((highest -1) (last -1))
    (loop for at from start below end by +setting-octets+
          for name = (setting-name octets at)
          for value = (setting-value octets at)
          until (connection-closed-p connection)
          do (apply-setting connection name value)
             (when (= name +setting-initial-window-size+)
               (setf highest (max highest value)
                     last value)))
    (loop for window in (list highest last)
          until (or (minusp window) (connection-closed-p connection))
          do (change-initial-window connection window))))

(defun receive-settings (connection octets start end)
  "Apply and acknowledge the peer's SETTINGS, parameters from START to END; notify the owner."
  (when (= +awaiting-settings+ (connection-phase connection))
    (setf (connection-phase connection) +running+
          (connection-preface-deadline connection) 0
          (connection-peer-max-streams connection) #xFFFFFFFF))
  (apply-settings connection octets start end)
  (unless (connection-closed-p connection)
    (emit-settings-ack connection))
  (unless (connection-closed-p connection)
    (funcall (sink-on-settings (connection-sink connection)) connection)))
