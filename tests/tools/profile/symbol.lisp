;;;; Names for addresses.

(in-package #:clgrpc.tests.profile)

(test ranges
  (let ((ranges (profile::rows-ranges '((#x200 16 "b") (#x100 32 "a") (#x210 8 "c")))))
    (loop for (place name) in '((#xff nil) (#x100 "a") (#x11f "a") (#x120 nil) (#x200 "b")
                                (#x20f "b") (#x210 "c") (#x218 nil))
          do (is (equal name (profile::find-range ranges place)) "~X" place))))

(test mappings-of-files
  (let ((mapping (profile::parse-mapping
                  "52a00000-53e20000 rwxp 03718000 fe:00 118    /bin/clgrpc")))
    (is (equal '(#x52a00000 #x53e20000 #x3718000 "/bin/clgrpc")
               (list (profile::mapping-start mapping) (profile::mapping-end mapping)
                     (profile::mapping-offset mapping) (profile::mapping-path mapping)))))
  (is (null (profile::parse-mapping "50008000-50100000 rwxp 00000000 00:00 0 "))))

(test a-map-has-this-image's-functions
  (uiop:with-temporary-file (:pathname path)
    (profile:write-perf-map path)
    (let* ((ranges (profile::read-perf-map path))
           (address (sb-kernel:get-lisp-obj-address #'profile::find-range)))
      (is (equal "clgrpc.profile::find-range" (profile::find-range ranges address)))))
  (is (null (profile::read-perf-map "/nowhere/at/all.map"))))

(test maps-of-others
  "Lines that are none of a map are left out, and octets that are no text."
  (uiop:with-temporary-file (:pathname path)
    (with-open-file (stream path :direction :output :if-exists :supersede
                                 :element-type '(unsigned-byte 8))
      (loop for line in '("100 10 a" "" "x" "x y z" "0x200 10 b" "-5 10 c" "300 -1 d" "400  e"
                          "500 8 f g")
            do (write-sequence (clgrpc.base:string-octets (format nil "~A~%" line)) stream))
      (write-sequence #(#x36 #x30 #x30 #x20 #x38 #x20 #xff #xc3 10) stream))
    (let ((ranges (profile::read-perf-map path)))
      (loop for (place name) in '((#x100 "a") (#x200 nil) (#x300 nil) (#x400 nil) (#x500 "f g"))
            do (is (equal name (profile::find-range ranges place)) "~X" place))
      (is (stringp (profile::find-range ranges #x600))))))
