;;;; Descriptions of frames (RFC 9113 sections 4.1 and 6) for tracers, made from octets alone; the
;;;; protocol itself does not use them.

(in-package #:clgrpc.http2)

(defparameter *setting-names*
  '(:header-table-size :enable-push :max-concurrent-streams :initial-window-size :max-frame-size
    :max-header-list-size))

(defun flag-names (type flags)
  "Return a list of keywords, the names of those of FLAGS that a frame of TYPE may have."
  (loop for (name flag . types) in `((:end-stream ,+flag-end-stream+ ,+frame-data+ ,+frame-headers+)
                                     (:ack ,+flag-ack+ ,+frame-settings+ ,+frame-ping+)
                                     (:end-headers ,+flag-end-headers+ ,+frame-headers+
                                                   ,+frame-continuation+)
                                     (:padded ,+flag-padded+ ,+frame-data+ ,+frame-headers+)
                                     (:priority ,+flag-priority+ ,+frame-headers+))
        when (and (logtest flag flags) (member type types))
          collect name))

(defun describe-settings (octets start end)
  "The parameters from START to END as a list of names and values."
  (loop for at from start below (1- end) by +setting-octets+
        for name = (setting-name octets at)
        collect (or (nth (1- name) *setting-names*) name)
        collect (setting-value octets at)))

(defun describe-payload (type octets at end)
  "The contents of the payload of a frame of TYPE, in OCTETS from AT to END, as a plist."
  (case type
    (#.+frame-rst-stream+ (list :code (error-code-name (rst-stream-error-code octets at))))
    (#.+frame-settings+ (let ((settings (describe-settings octets at end)))
                          (and settings (list :settings settings))))
    (#.+frame-ping+ (list :payload (format nil "~16,'0X" (ping-payload octets at))))
    (#.+frame-goaway+
     (list :last-stream (goaway-last-stream-id octets at)
           :code (error-code-name (goaway-error-code octets at))
           :debug (map 'string #'code-char (subseq octets (+ at 8) end))))
    (#.+frame-window-update+ (list :increment (window-update-increment octets at)))))

(defun describe-frame (octets at end)
  "Describe the frame that begins at the index AT in OCTETS; only the octets before END have
arrived. Return two values. The first is a plist of :FRAME, a name such as \"HEADERS\", :STREAM,
:LENGTH, :FLAGS, a list of keywords, and, if the frame is complete, the contents of its payload. The
second is the frame's length with its header. Return nil if the frame's header is incomplete."
  (when (<= (+ at +frame-header-octets+) end)
    (multiple-value-bind (length type flags id) (read-frame-header octets at)
      (let* ((payload (+ at +frame-header-octets+))
             (payload-end (+ payload length))
             (names (flag-names type flags)))
        (values (append (list :frame (frame-name type) :stream id :length length)
                        (when names (list :flags names))
                        (when (and (<= payload-end end) (zerop (frame-header-error type length id)))
                          (describe-payload type octets payload payload-end)))
                (+ +frame-header-octets+ length))))))

(defun skip-preface (connection octets start end)
  "Return the position of the first frame in OCTETS from START to END. If OCTETS begin with the
client's preface (section 3.4), it is the position after the preface. OCTETS are the input of
CONNECTION, which may still await the preface; if CONNECTION is nil, OCTETS are a client's output."
  (let ((preface-end (+ start (length **preface**))))
    (if (and (or (null connection) (= +awaiting-preface+ (connection-phase connection)))
             (<= preface-end end)
             (null (mismatch **preface** octets :start2 start :end2 preface-end)))
        preface-end
        start)))
